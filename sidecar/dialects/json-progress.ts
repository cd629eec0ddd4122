export interface JsonProgress {
  push(text: string): void;
  /** A whole object, array or string has been seen; what follows does not change that. */
  readonly isComplete: boolean;
}

/** Follows JSON text as it arrives, with constant work per character, to know when it is whole. */
export function createJsonProgress(): JsonProgress {
  let depth = 0;
  let isInString = false;
  let isEscaped = false;
  let isComplete = false;

  function step(character: string): void {
    if (isInString) {
      if (isEscaped) isEscaped = false;
      else if (character === "\\") isEscaped = true;
      else if (character === '"') {
        isInString = false;
        isComplete = depth === 0;
      }
    } else if (character === '"') isInString = true;
    else if (character === "{" || character === "[") depth += 1;
    else if (character === "}" || character === "]") {
      depth -= 1;
      isComplete = depth <= 0;
    }
  }

  return {
    push(text) {
      for (let index = 0; index < text.length && !isComplete; index += 1)
        step(text[index] as string);
    },
    get isComplete() {
      return isComplete;
    },
  };
}
