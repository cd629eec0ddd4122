/** Whether text is JSON; a tool call's arguments are not when they were cut off. */
export function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}
