#pragma once

// Runs a command and keeps what it says, stdout and stderr together.

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace tamis::test {

struct CliOutput {
  int exit_code = -1;
  std::string text;

  /// Every line that begins an object.
  std::vector<nlohmann::json> json_lines() const {
    std::vector<nlohmann::json> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) {
      if (line.starts_with('{')) lines.push_back(nlohmann::json::parse(line));
    }
    return lines;
  }
  nlohmann::json json() const { return nlohmann::json::parse(text); }
};

inline CliOutput run_command(const std::string& command) {
  CliOutput output;
  std::FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return output;
  std::array<char, 4096> buffer;
  while (const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe))
    output.text.append(buffer.data(), got);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) output.exit_code = WEXITSTATUS(status);
  return output;
}

inline CliOutput run_tamis(const std::string& arguments) { return run_command("'" TAMIS_CLI "' " + arguments); }

}  // namespace tamis::test
