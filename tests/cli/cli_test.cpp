// Runs the built `tamis` as a user would and looks at exit code, stdout and stderr.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace tamis {
namespace {

namespace fs = std::filesystem;
const std::string kModel = TAMIS_SOURCE_DIR "/models/tiny-v4";

struct Result {
  int exit_code;
  std::string out, err;
};

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_file(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

class Cli : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("tamis_cli_test_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  Result run(const std::string& arguments) {
    const std::string out = folder_ / "out", err = folder_ / "err";
    const int status = std::system(("'" TAMIS_CLI "' " + arguments + " >'" + out + "' 2>'" + err + "'").c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(out), read_file(err)};
  }

  // Bad input: exit 2, nothing on stdout, one line on stderr that says what the test expects.
  void expect_refused(const std::string& arguments, const std::string& text) {
    const Result result = run(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments << "\n" << result.err;
    EXPECT_EQ(result.out, "") << arguments;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << arguments << "\n" << result.err;
    EXPECT_TRUE(result.err.starts_with("tamis: ")) << result.err;
    EXPECT_NE(result.err.find(text), std::string::npos) << "expected \"" << text << "\" in: " << result.err;
  }

  // A copy of the model folder to spoil.
  fs::path copy_model() {
    const fs::path copy = folder_ / "model";
    fs::remove_all(copy);
    fs::create_directories(copy);
    for (const char* name : {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}) {
      fs::copy_file(fs::path(kModel) / name, copy / name);
    }
    return copy;
  }

  fs::path folder_;
};

TEST_F(Cli, GeneratesTheGoldenContinuationAndNothingElseOnStdout) {
  const std::string base =
      "generate --model " + kModel + " --prompt-file " + kModel + "/golden.txt --max-new-tokens 8 ";
  for (const char* options : {"--kv-cache fp32", "--kv-cache bf16", "--kv-cache fp8",
                              "--kv-cache fp8 --prefill-chunk 7", "--kv-cache fp32 --companions 5", "--threads 1"}) {
    const Result result = run(base + options);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, "482913.\n") << options;
    EXPECT_EQ(result.err, "") << options;
  }
}

TEST_F(Cli, StatsGoToStderr) {
  const Result result = run("generate --model " + kModel + " --prompt 'A cache is ' --max-new-tokens 10 --stats");
  EXPECT_EQ(result.exit_code, 0);
  for (const char* text : {"prompt", "decode", "steps; no entry to compress", "sparse attention", "indexer"}) {
    EXPECT_NE(result.err.find(text), std::string::npos) << text << " in:\n" << result.err;
  }
}

TEST_F(Cli, SamplingRepeatsWithItsSeed) {
  const std::string base =
      "generate --model " + kModel + " --prompt 'The table ' --max-new-tokens 40 --temperature 1 --seed ";
  const std::string first = run(base + "1").out;
  EXPECT_FALSE(first.empty());
  EXPECT_EQ(run(base + "1").out, first);
  EXPECT_NE(run(base + "2").out, first);
}

TEST_F(Cli, VerifyPassesOnTheGoldenFileAndFindsASpoiltModel) {
  const std::string golden = " --golden " + kModel + "/golden.safetensors";
  const Result good = run("verify --model " + kModel + golden);
  EXPECT_EQ(good.exit_code, 0) << good.out << good.err;
  EXPECT_NE(good.out.find("all within tolerance"), std::string::npos);

  const Result json = run("verify --json --model " + kModel + golden);
  std::istringstream lines(json.out);
  int rows = 0;
  for (std::string line; std::getline(lines, line); ++rows) {
    const auto row = nlohmann::json::parse(line);
    EXPECT_TRUE(row.at("ok").get<bool>()) << line;
    for (const char* key : {"tensor", "elements", "worst", "limit"}) EXPECT_TRUE(row.contains(key)) << line;
  }
  EXPECT_EQ(rows, 33);  // 4 a layer, compressed_kv of four layers, 3 of the indexer and topk of two, and the logits

  // One bit of one weight: the exponent of the first element of the embedding.
  const fs::path model = copy_model();
  {
    std::fstream file(model / "model.safetensors", std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(-1, std::ios::end);
    const char byte = static_cast<char>(file.get() ^ 0x01);
    file.seekp(-1, std::ios::end);
    file.put(byte);
  }
  EXPECT_EQ(run("verify --model " + model.string() + golden).exit_code, 1);
}

TEST_F(Cli, RecallPrintsOneObjectALine) {
  const Result result = run("recall --json --trials 1 --lengths 512 --topk 16,64 --model " + kModel);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::istringstream lines(result.out);
  int rows = 0;
  for (std::string line; std::getline(lines, line); ++rows) {
    const auto row = nlohmann::json::parse(line);
    for (const char* key : {"length", "topk", "kv_cache", "selection", "digits", "right", "share"}) {
      EXPECT_TRUE(row.contains(key)) << key << " in " << line;
    }
    EXPECT_EQ(row.at("length"), 512);
    EXPECT_EQ(row.at("digits"), 24);
  }
  EXPECT_EQ(rows, 2);
}

TEST_F(Cli, AQuantisedModelStillFindsTheCode) {
  const std::string output = folder_ / "quantised";
  EXPECT_EQ(run("quantize --model " + kModel + " --output " + output).exit_code, 0);
  const Result result =
      run("generate --model " + output + " --prompt-file " + kModel + "/golden.txt --max-new-tokens 7");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "482913.");
}

TEST_F(Cli, HelpTeaches) {
  const Result help = run("--help");
  EXPECT_EQ(help.exit_code, 0);
  for (const char* command : {"generate", "verify", "recall", "quantize", "info"}) {
    EXPECT_NE(help.out.find(command), std::string::npos) << command;
    const Result one = run(std::string(command) + " --help");
    EXPECT_EQ(one.exit_code, 0);
    EXPECT_NE(one.out.find("--model"), std::string::npos) << command;
  }
  EXPECT_EQ(run("--version").exit_code, 0);
  const Result info = run("info --json --model " + kModel);
  EXPECT_EQ(nlohmann::json::parse(info.out).at("model").at("layers"), 5);
}

TEST_F(Cli, RefusesWrongUsage) {
  expect_refused("", "subcommand is required");
  expect_refused("fly", "fly");
  expect_refused("generate --prompt x", "--model is required");
  expect_refused("generate --model " + kModel, "prompt");
  expect_refused("generate --model " + kModel + " --prompt x --prompt-file y", "prompt");
  expect_refused("generate --model " + kModel + " --prompt x --no-such-option", "--no-such-option");
  expect_refused("generate --model " + kModel + " --prompt x --kv-cache fp4", "fp4");
  expect_refused("generate --model " + kModel + " --prompt x --prefill-chunk 0", "--prefill-chunk");
  expect_refused("generate --model " + kModel + " --prompt x --max-new-tokens -1", "--max-new-tokens");
  expect_refused("generate --model " + kModel + " --prompt x --top-p 0", "top_p is 0");
  expect_refused("generate --model " + kModel + " --prompt x --temperature nan", "temperature");
  expect_refused("recall --model " + kModel + " --lengths 10", "--lengths");
  expect_refused("verify --model " + kModel, "--golden is required");
}

TEST_F(Cli, RefusesBadPrompts) {
  expect_refused("generate --model " + kModel + " --prompt-file /no/such/file", "/no/such/file");
  write_file(folder_ / "bad_utf8", std::string("abc\xFF\xFE", 5));
  expect_refused("generate --model " + kModel + " --prompt-file " + (folder_ / "bad_utf8").string(), "UTF-8");
  write_file(folder_ / "long", std::string(70000, 'a'));
  expect_refused("generate --model " + kModel + " --prompt-file " + (folder_ / "long").string(),
                 "the model's limit is 65536");
}

TEST_F(Cli, RefusesBrokenModelFolders) {
  const auto generate = [](const fs::path& model) { return "generate --prompt x --model " + model.string(); };
  expect_refused(generate("/no/such/folder"), "/no/such/folder");
  const auto spoil = [&](const char* file, const std::string& contents) {
    const fs::path model = copy_model();
    write_file(model / file, contents);
    return model;
  };
  expect_refused(generate(spoil("config.json", "{\"hidden_size\": ")), "config.json");
  expect_refused(generate(spoil("config.json", "{}")), "config.json");
  expect_refused(generate(spoil("tokenizer.json", "[1, 2")), "tokenizer.json");
  expect_refused(generate(spoil("model.safetensors", "short")), "model.safetensors");

  const std::string weights = read_file(fs::path(kModel) / "model.safetensors");
  expect_refused(generate(spoil("model.safetensors", weights.substr(0, weights.size() / 2))), "model.safetensors");
  expect_refused(generate(spoil("model.safetensors", weights.substr(0, weights.size() - 1))), "model.safetensors");

  // Edit the header in place, keeping its length.
  const auto edited = [&](const std::string& from, const std::string& to) {
    std::string copy = weights;
    const std::size_t at = copy.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    copy.replace(at, from.size(), to);
    return spoil("model.safetensors", copy);
  };
  expect_refused(generate(edited("\"norm.weight\"", "\"norm.weighs\"")), "norm.weight");
  expect_refused(generate(edited("\"shape\":[260,256]", "\"shape\":[256,260]")), "[260, 256]");

  for (const char* file : {"config.json", "model.safetensors", "tokenizer.json"}) {
    const fs::path model = copy_model();
    fs::remove(model / file);
    expect_refused(generate(model), file);
  }
}

}  // namespace
}  // namespace tamis
