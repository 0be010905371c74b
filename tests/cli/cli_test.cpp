// Runs the built `tamis` as a user would and looks at exit code, stdout and stderr.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "core/gpu_list.hpp"
#include "model/safetensors.hpp"
#include "tamis/topk.hpp"

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

  // What the arguments themselves redirect does not reach the result.
  Result run(const std::string& arguments) {
    const std::string out = folder_ / "out", err = folder_ / "err";
    const int status = std::system((">'" + out + "' 2>'" + err + "' '" TAMIS_CLI "' " + arguments).c_str());
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

  // A model folder with one file changed as JSON.
  template <typename Change>
  std::string changed_model(const char* file, const Change& change) {
    const fs::path model = copy_model();
    nlohmann::json json = nlohmann::json::parse(read_file(model / file));
    change(json);
    write_file(model / file, json.dump());
    return model.string();
  }

  // A model folder whose last norm is NaN: every logit is too.
  std::string nan_model() {
    const fs::path model = copy_model();
    std::string bytes = read_file(model / "model.safetensors");
    std::uint64_t header_size = 0;
    std::memcpy(&header_size, bytes.data(), sizeof header_size);
    const auto offsets = nlohmann::json::parse(bytes.substr(8, header_size)).at("norm.weight").at("data_offsets");
    const std::size_t begin = offsets[0], end = offsets[1];
    for (std::size_t i = begin; i < end; ++i) bytes[8 + header_size + i] = static_cast<char>(0xFF);
    write_file(model / "model.safetensors", bytes);
    return model.string();
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

// The seven tokens of the code and its full stop are followed by a newline of the command, the eighth token is one
// itself.
TEST_F(Cli, SaysWhichHelpHelps) {
  expect_refused("foo", "there is no command foo (commands: generate, ");
  expect_refused("bench topk --rows -1", "The following arguments were not expected: --rows -1 (see tamis bench topk");
  expect_refused("explain topk stray", "not expected: stray (see tamis explain topk");
  expect_refused("explain step", "(commands: topk, compressor, indexer, sparse_mla; see tamis explain --help)");
  expect_refused("generate --bogus", "(see tamis generate --help)");
  expect_refused("explain topk --gpu --rows 64", "--rows requires --width (see tamis explain topk --help)");
}

TEST_F(Cli, GeneratesTheGoldenContinuationAndNothingElseOnStdout) {
  const std::string base = "generate --model " + kModel + " --prompt-file " + kModel + "/golden.txt --max-new-tokens ";
  EXPECT_EQ(run(base + "0").out, "");
  EXPECT_EQ(run(base + "3").out, "482\n");
  EXPECT_EQ(run(base + "9").out, "482913.\n \n");
  for (const char* options :
       {"7 --kv-cache fp32", "7 --kv-cache fp8", "8 --kv-cache fp32", "8 --kv-cache bf16", "8 --kv-cache fp8",
        "8 --kv-cache fp8 --prefill-chunk 7", "8 --kv-cache fp32 --companions 5", "8 --threads 1"}) {
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
  EXPECT_EQ(result.out, "482913.\n");
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

TEST_F(Cli, InfoSaysWhatRunsOnTheGpusOrWhyThereAreNone) {
  const Result result = run("info --json");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto cuda = nlohmann::json::parse(result.out).at("cuda");
  EXPECT_EQ(cuda.at("built_for").get<std::string>(), core::cuda_archs());
  const core::GpuList list = core::list_gpus();
  ASSERT_EQ(cuda.at("gpus").size(), list.gpus.size());
  const Result text = run("info");
  if (list.gpus.empty()) {
    EXPECT_EQ(cuda.at("why_none").get<std::string>(), list.why_none);
    EXPECT_NE(text.out.find(list.why_none), std::string::npos) << text.out;
  }
  for (std::size_t i = 0; i < list.gpus.size(); ++i) {
    const auto& gpu = cuda.at("gpus")[i];
    EXPECT_EQ(gpu.at("name").get<std::string>(), list.gpus[i].name);
    EXPECT_EQ(gpu.at("sms"), list.gpus[i].num_sms);
    const std::vector<TopkSupport> support = topk_support({Device::Kind::kCuda, list.gpus[i].index});
    ASSERT_EQ(gpu.at("topk").size(), support.size());
    for (std::size_t a = 0; a < support.size(); ++a) {
      EXPECT_EQ(gpu.at("topk")[a].at("algorithm"), topk_algorithm_name(support[a].algorithm));
      EXPECT_EQ(gpu.at("topk")[a].at("available"), support[a].available);
      EXPECT_EQ(gpu.at("topk")[a].at("why"), support[a].why);
    }
    EXPECT_NE(text.out.find(list.gpus[i].name), std::string::npos) << text.out;
  }
}

// With a GPU the same text comes out; without one, a line says why not.
TEST_F(Cli, DeviceChangesWhereTheTopkRunsAndNothingElse) {
  const std::string golden =
      "generate --model " + kModel + " --prompt-file " + kModel + "/golden.txt --max-new-tokens 8 --index-topk 16 ";
  const Result cpu = run(golden + "--device cpu --stats");
  EXPECT_EQ(cpu.exit_code, 0) << cpu.err;
  EXPECT_EQ(cpu.out, run(golden).out);
  EXPECT_NE(cpu.err.find("indexer's top-k and compressors on cpu\n"), std::string::npos) << cpu.err;

  const std::string verify = "verify --model " + kModel + " --golden " + kModel + "/golden.safetensors --device cuda";
  const std::string recall = "recall --lengths 256 --trials 1 --topk 16 --model " + kModel + " --device ";
  const TopkSupport support = topk_support({Device::Kind::kCuda, 0}).front();
  if (!support.available) {
    expect_refused(golden + "--device cuda", "--device cuda: " + support.why);
    expect_refused(golden + "--device cuda:0", "--device cuda:0: " + support.why);
    expect_refused(verify, "--device cuda: " + support.why);
    expect_refused(recall + "cuda", "--device cuda: " + support.why);
  } else {
    const Result gpu = run(golden + "--device cuda --stats");
    EXPECT_EQ(gpu.exit_code, 0) << gpu.err;
    EXPECT_EQ(gpu.out, cpu.out);
    EXPECT_NE(gpu.err.find("indexer's top-k and compressors on cuda:0 ("), std::string::npos) << gpu.err;
    EXPECT_EQ(run(verify).exit_code, 0);
    EXPECT_EQ(run(recall + "cuda").out, run(recall + "cpu").out);
  }
  for (const std::string device : {"tpu", "cuda:", "cuda:-1", "cuda:1x", "CUDA", ""}) {
    expect_refused(golden + "--device '" + device + "'", "--device: is " + device + ", must be cpu, cuda or cuda:N");
  }
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

TEST_F(Cli, RefusesPromptFilesThatAreNone) {
  const std::string base = "generate --model " + kModel + " --max-new-tokens 1 ";
  expect_refused(base + "--prompt-file " + folder_.string(), "Is a directory");
  expect_refused(base + "--prompt-file ''", "--prompt-file: must not be empty");
  expect_refused(base + "--prompt-file /dev/zero", "holds more than 67108864 bytes");
  EXPECT_EQ(run(base + "--prompt-file /dev/null").exit_code, 0) << "an empty text";
  EXPECT_EQ(run(base + "--prompt-file /dev/stdin </dev/null").exit_code, 0);
}

TEST_F(Cli, RefusesValuesThatCannotBeMeant) {
  const std::string base = "generate --model " + kModel + " --prompt x --max-new-tokens 1 ";
  for (const char* seed : {"-1", "18446744073709551616", "1.5", "x"}) {
    expect_refused(base + "--seed=" + seed, std::string("--seed: is ") + seed + ", must be a whole number from 0");
    expect_refused("recall --model " + kModel + " --seed=" + seed, "--seed");
  }
  EXPECT_EQ(run(base + "--seed 18446744073709551615").exit_code, 0);
  for (const char* temperature : {"-1", "inf", "nan", "1e999"}) {
    expect_refused(base + "--temperature=" + temperature,
                   std::string("--temperature: is ") + temperature + ", must be a number of at least 0");
  }
  expect_refused("generate --prompt x --model ''", "--model: must not be empty");
  expect_refused("info --model ''", "--model: must not be empty");
  expect_refused("quantize --model " + kModel + " --output ''", "--output: must not be empty");
  expect_refused("verify --model " + kModel + " --golden ''", "--golden: must not be empty");
  expect_refused("\"$(printf 'fl\\ny')\"", "fl\\ny");
  fs::create_directory_symlink(folder_ / "loop", folder_ / "loop");
  const Result loop = run("generate --prompt x --model " + (folder_ / "loop").string());
  EXPECT_EQ(loop.exit_code, 2);
  EXPECT_EQ(loop.err.find("filesystem error"), std::string::npos) << loop.err;
}

TEST_F(Cli, ChecksTheModelsLimitBeforeMemoryIsTaken) {
  const std::string limit = "the model's limit is 65536";
  expect_refused("generate --prompt x --max-new-tokens 1073741824 --model " + kModel, limit);
  expect_refused("generate --prompt x --max-new-tokens 65535 --companions 1024 --model " + kModel, limit);
  expect_refused("recall --lengths 512,1073741824 --trials 1 --model " + kModel, limit);
  expect_refused("bench engine --context 1073741824 --model " + kModel, limit);
  expect_refused("bench engine --context 65530 --new-tokens 7 --model " + kModel, limit);
}

TEST_F(Cli, CompanionsDoNotDecideWhetherARequestRuns) {
  const std::string model = changed_model("config.json", [](auto& config) { config["max_position_embeddings"] = 64; });
  const std::string base = "generate --prompt x --max-new-tokens 62 --model " + model;
  const Result alone = run(base);
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  const Result among = run(base + " --companions 9");
  EXPECT_EQ(among.exit_code, 0) << among.err;
  EXPECT_EQ(among.out, alone.out);
}

TEST_F(Cli, LogitsThatAreNotFiniteAreAnError) {
  const std::string model = nan_model();
  const std::string text = "are not finite; the weights or caches hold NaN";
  expect_refused("generate --prompt x --model " + model, "forward: logits of position 1 " + text);
  expect_refused("generate --prompt x --temperature 1 --model " + model, text);
  expect_refused("recall --lengths 256 --trials 1 --topk 16 --model " + model, text);
  EXPECT_EQ(run("verify --model " + model + " --golden " + kModel + "/golden.safetensors").exit_code, 1);
}

TEST_F(Cli, RecallRefusesTokenizersThatLeaveNoText) {
  const std::string options = "recall --lengths 256 --trials 1 --topk 16 --model ";
  const auto prefix = [](auto& tokenizer) {
    auto& single = tokenizer["post_processor"]["single"];
    for (int i = 0; i < 200; ++i) single.insert(single.begin(), single[0]);
  };
  expect_refused(options + changed_model("tokenizer.json", prefix), "recall: length is 256, but the tokenizer takes");
  const auto nothing = [](auto& tokenizer) {
    tokenizer["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"}, {"pattern", {{"Regex", "[\\s\\S]+"}}}, {"behavior", "Removed"}, {"invert", false}},
          tokenizer["pre_tokenizer"]}}};
  };
  expect_refused(options + changed_model("tokenizer.json", nothing), "recall: the tokenizer gives no tokens for");
}

TEST_F(Cli, VerifyRefusesGoldenFilesThatCannotBeCompared) {
  const fs::path path = folder_ / "golden.safetensors";
  using Shape = std::vector<std::int64_t>;
  // One token, a logit for each word, and one more tensor: all zeros but one element, which is `first`.
  const auto refused = [&](const Shape& tokens, const Shape& logits, const char* name, const Shape& shape, float first,
                           const std::string& text) {
    std::map<std::string, std::vector<std::byte>> bytes;
    model::TensorMap tensors;
    const auto add = [&](const char* tensor, model::FileDType dtype, const Shape& extents) {
      auto& data = bytes[tensor];
      data.assign(static_cast<std::size_t>(4 * model::element_count(extents)), std::byte{0});
      tensors[tensor] = {dtype, extents, data};
    };
    add("input_ids", model::FileDType::kI32, tokens);
    add("logits", model::FileDType::kF32, logits);
    add(name, std::string(name).ends_with(".topk") ? model::FileDType::kI32 : model::FileDType::kF32, shape);
    std::memcpy(bytes[name].data(), &first, sizeof first);
    model::write_safetensors(path, tensors);
    expect_refused("verify --model " + kModel + " --golden " + path.string(), text);
  };
  const char* in = "layers.0.attn_in";
  refused({1}, {1, 260}, in, {}, 0, "layers.0.attn_in has shape [], the model gives [1, 256]");
  refused({1}, {1, 260}, in, {256}, 0, "layers.0.attn_in has shape [256], the model gives [1, 256]");
  refused({1}, {1, 260}, in, {1, 16, 16}, 0, "layers.0.attn_in has shape [1, 16, 16], the model gives [1, 256]");
  refused({1}, {1, 260}, in, {2, 256}, 0, "layers.0.attn_in has shape [2, 256], the model gives [1, 256]");
  refused({1}, {1, 260}, "layers.0.out", {1, 256, 4}, 0, "[1, 256, 4], the model gives [1, 4, 256]");
  refused({8}, {8, 260}, "layers.1.topk", {64}, 0, "layers.1.topk has shape [64], the model gives [8, 2]");
  refused({1}, {260}, in, {1, 256}, 0, "logits has shape [260], the model gives [1, 260]");
  refused({1}, {260, 1}, in, {1, 256}, 0, "logits has shape [260, 1], the model gives [1, 260]");
  refused({1, 1}, {1, 260}, in, {1, 256}, 0, "input_ids has shape [1, 1], must have one dimension");
  refused({}, {1, 260}, in, {1, 256}, 0, "input_ids has shape [], must have one dimension");
  refused({0}, {1, 260}, in, {1, 256}, 0, "input_ids is empty");
  refused({65537}, {1, 260}, in, {1, 256}, 0, "input_ids has 65537 tokens, the model's limit is 65536");
  refused({1}, {1, 260}, in, {1, 256}, INFINITY, "layers.0.attn_in holds inf, must be finite");
  refused({1}, {1, 260}, in, {1, 256}, NAN, "layers.0.attn_in holds nan, must be finite");
}

// Every command that prints a result, quick ones.
std::vector<std::string> printing_commands() {
  return {"--help",
          "--version",
          "generate --help",
          "info",
          "explain topk",
          "generate --prompt x --max-new-tokens 2 --model " + kModel,
          "recall --lengths 256 --trials 1 --topk 16 --model " + kModel,
          "verify --model " + kModel + " --golden " + kModel + "/golden.safetensors",
          "bench topk --suite smoke --repeats 15 --filter 'k 512' --threads 1"};
}

TEST_F(Cli, AResultThatNobodyGetsIsAnError) {
  for (const std::string& command : printing_commands()) {
    for (const char* redirection : {" >/dev/full", " >&-"}) {
      const Result result = run(command + redirection);
      EXPECT_EQ(result.exit_code, 2) << command << redirection;
      EXPECT_NE(result.err.find("tamis: stdout: cannot be written: "), std::string::npos)
          << command << redirection << "\n"
          << result.err;
    }
  }
}

TEST_F(Cli, AStderrThatCannotBeWrittenChangesNothing) {
  const std::string stats =
      "generate --stats --prompt-file " + kModel + "/golden.txt --max-new-tokens 7 --model " + kModel;
  for (const char* redirection : {" 2>/dev/full", " 2>&-"}) {
    EXPECT_EQ(run(std::string("fly") + redirection).exit_code, 2) << redirection;
    EXPECT_EQ(run(std::string("generate --prompt x --model /no/such/folder") + redirection).exit_code, 2);
    const Result good = run(stats + redirection);
    EXPECT_EQ(good.exit_code, 0) << redirection;
    EXPECT_EQ(good.out, "482913.\n") << redirection;
    const std::string output = folder_ / "quantised";
    fs::remove_all(output);
    EXPECT_EQ(run("quantize --model " + kModel + " --output " + output + redirection).exit_code, 0) << redirection;
    EXPECT_EQ(run("info --model " + output).exit_code, 0) << "no message landed in a file of the model";
  }
  EXPECT_EQ(run("info >&- 2>&-").exit_code, 2);
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
