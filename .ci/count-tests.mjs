// Adds up vitest's JSON reports and closes with one line: N passed, N failed, N skipped.
import { existsSync, readFileSync } from "node:fs";

const total = { passed: 0, failed: 0, skipped: 0 };
for (const file of process.argv.slice(2)) {
  if (!existsSync(file)) {
    total.failed += 1;
    continue;
  }
  const report = JSON.parse(readFileSync(file, "utf8"));
  total.passed += report.numPassedTests;
  total.failed += report.numFailedTests + (report.numFailedTests === 0 && !report.success ? 1 : 0);
  total.skipped += report.numPendingTests + report.numTodoTests;
}
console.log(`${total.passed} passed, ${total.failed} failed, ${total.skipped} skipped`);
