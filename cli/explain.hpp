#pragma once

// What the operations of `tamis explain` share.

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tamis::cli {

using Json = nlohmann::ordered_json;

// One line of a rules table, whatever the operation.
struct RuleLine {
  std::string choice, limits;
  const char* why;
  bool chosen = false;
  const char* measured = nullptr;  // where there is a measurement
};

void print_rules(const std::vector<RuleLine>& rules);
Json rules_json(const std::vector<RuleLine>& rules);
void add_json(CLI::App* command, bool& json);

/// Whether a shape was given. @throws Error kInvalidArgument if a part of it was.
bool shape_given(const std::vector<CLI::Option*>& options);

void add_explain_topk(CLI::App* explain);

}  // namespace tamis::cli
