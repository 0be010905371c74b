#pragma once

// Every command adds itself to the parser and runs from CLI11's callback. What a command finds (a comparison out of
// tolerance, say) goes into exit_code: 0 fine, 1 a finding. Errors are thrown; main() turns them into exit code 2.

#include <CLI/CLI.hpp>

namespace tamis::cli {

void add_generate(CLI::App& app, int& exit_code);
void add_verify(CLI::App& app, int& exit_code);
void add_recall(CLI::App& app, int& exit_code);
void add_quantize(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_replay(CLI::App& app, int& exit_code);
void add_explain(CLI::App& app, int& exit_code);
void add_info(CLI::App& app, int& exit_code);

}  // namespace tamis::cli
