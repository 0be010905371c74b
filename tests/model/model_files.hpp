#pragma once

// Folders and files for the tests of what reads them.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "tamis/status.hpp"

namespace tamis::model {

inline std::filesystem::path tiny_v4() { return std::filesystem::path(TAMIS_SOURCE_DIR) / "models" / "tiny-v4"; }

inline std::string file_text(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  EXPECT_TRUE(stream.is_open()) << path;
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

/// A new empty folder, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tamis_test_XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }
  void write(const std::string& name, std::string_view text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
  }

 private:
  std::filesystem::path path_;
};

/// Runs `call`, which must throw tamis::Error of that status, and returns its text, which must be one line.
template <typename Call>
std::string error_text(Status status, const Call& call) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(status_name(e.status()), std::string(status_name(status))) << e.what();
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

}  // namespace tamis::model
