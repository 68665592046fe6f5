// Answers a test's calls, one JSON object a line: {"call": NAME, ...} → {"result": ...} or {"error": ...}.
const readline = require("node:readline");

exports.answer = async (calls, failure) => {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const asked = JSON.parse(line);
    let told;
    try {
      told = { result: (await calls[asked.call](asked)) ?? null };
    } catch (error) {
      told = { error: { code: failure(error) ?? null, message: `${error}` } };
    }
    process.stdout.write(`>${JSON.stringify(told)}\n`);
  }
};
