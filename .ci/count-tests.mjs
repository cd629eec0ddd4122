// Adds up vitest's JSON reports: names every failed test, then closes with one line:
// N passed, N failed, N skipped.
import { existsSync, readFileSync } from "node:fs";
import { basename } from "node:path";

const total = { passed: 0, failed: 0, skipped: 0 };
const failures = [];
for (const file of process.argv.slice(2)) {
  const run = basename(file, ".json");
  if (!existsSync(file)) {
    total.failed += 1;
    failures.push(`${run}: no report was written`);
    continue;
  }
  const report = JSON.parse(readFileSync(file, "utf8"));
  const named = report.testResults.flatMap((result) => failedOf(run, result));
  failures.push(...named);
  total.passed += report.numPassedTests;
  // A file that could not be loaded, or an error outside of any test, has no test that failed.
  total.failed += Math.max(report.numFailedTests, named.length, report.success ? 0 : 1);
  total.skipped += report.numPendingTests + report.numTodoTests;
  if (!report.success && named.length === 0) failures.push(`${run}: an error outside of any test`);
}
for (const failure of failures) console.log(`FAILED ${failure}`);
console.log(`${total.passed} passed, ${total.failed} failed, ${total.skipped} skipped`);

/** One line per failed test of a file; one for the file itself when no test of it ran. */
function failedOf(run, { name, status, message, assertionResults }) {
  const file = name.replace(
    /^.*?\/(?=(?:core|runtime|sidecar|controller|backends|adapters|bin|examples|test)\/)/,
    "",
  );
  const failed = assertionResults
    .filter((test) => test.status === "failed")
    .map(
      (test) =>
        `${run}: ${file} > ${test.fullName}\n       ${firstLine(test.failureMessages?.[0])}`,
    );
  if (failed.length > 0 || status !== "failed") return failed;
  return [`${run}: ${file}\n       ${firstLine(message)}`];
}

function firstLine(text = "") {
  return text.split("\n", 1)[0];
}
