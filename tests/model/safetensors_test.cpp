#include "model/safetensors.hpp"

#include <sys/stat.h>

#include <system_error>

#include "model/json_file.hpp"
#include "model_files.hpp"

namespace tamis::model {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string image(const std::string& header, std::string_view data) {
  const std::uint64_t length = header.size();
  std::string out(reinterpret_cast<const char*>(&length), sizeof length);
  return out + header + std::string(data);
}

std::string image_error(const std::string& header, std::string_view data) {
  const std::string text = image(header, data);
  return error_text(Status::kDataError, [&] { parse_safetensors(bytes_of(text), "f"); });
}

const char* const kGood =
    R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
    R"("b":{"dtype":"BF16","shape":[2,1],"data_offsets":[4,8]},)"
    R"("e":{"dtype":"I64","shape":[0,7],"data_offsets":[4,4]},"__metadata__":{"format":"pt"}}   )";

TEST(Safetensors, ListsTensors) {
  const std::string text = image(kGood, "abcdefgh");
  const TensorMap tensors = parse_safetensors(bytes_of(text), "f");
  ASSERT_EQ(tensors.size(), 3U);
  const StoredTensor& b = tensors.find("b")->second;
  EXPECT_EQ(b.dtype, FileDType::kBF16);
  EXPECT_EQ(b.shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(b.bytes.data()), b.bytes.size()), "efgh");
  EXPECT_TRUE(tensors.find("e")->second.bytes.empty());
}

TEST(Safetensors, EveryTruncationIsAnError) {
  const std::string text = image(kGood, "abcdefgh");
  for (std::size_t n = 0; n < text.size(); ++n) {
    const std::string cut = text.substr(0, n);  // A copy, so that a sanitizer sees a read past its end.
    error_text(Status::kDataError, [&] { parse_safetensors(bytes_of(cut), "f"); });
  }
  const std::string longer = text + "x";
  EXPECT_EQ(error_text(Status::kDataError, [&] { parse_safetensors(bytes_of(longer), "f"); }),
            "f: expected 8 data bytes, got 9");
}

TEST(Safetensors, BadHeaders) {
  EXPECT_EQ(error_text(Status::kDataError, [] { parse_safetensors({}, "f"); }), "f: expected at least 8 bytes, got 0");
  const std::string huge("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF{}", 10);
  EXPECT_EQ(error_text(Status::kDataError, [&] { parse_safetensors(bytes_of(huge), "f"); }),
            "f: header: expected at most 2 bytes, got a length of 18446744073709551615");
  EXPECT_EQ(image_error(" {}", ""), "f: header: expected it to begin with '{'");
  EXPECT_TRUE(image_error("{", "").starts_with("f: not valid JSON: "));
  EXPECT_EQ(image_error(R"({"a":1})", ""), "f: tensor \"a\": expected an object, got 1");
  EXPECT_EQ(image_error(R"({"a":{"dtype":"F32"}})", ""),
            "f: tensor \"a\": expected the keys dtype, shape and data_offsets, got 1 of them");
  EXPECT_EQ(image_error(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4],"x":1}})", "abcd"),
            "f: tensor \"a\": expected the keys dtype, shape and data_offsets, got \"x\"");
  EXPECT_EQ(image_error(R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})", "abcdefgh"),
            "f: tensor \"a\": dtype: expected F32, F16, BF16, F8_E4M3, F8_E8M0, U8, I8, I32 or I64, got \"F64\"");
  EXPECT_EQ(image_error(R"({"__metadata__":{"a":1}})", ""), "f: __metadata__: \"a\": expected a string, got 1");
  EXPECT_EQ(image_error(R"({"__metadata__":1})", ""), "f: __metadata__: expected an object, got 1");
  const std::string twice = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                            R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})";
  EXPECT_EQ(image_error(twice, "ab"), "f: the key \"a\" is given twice");
}

std::string entry_error(const std::string& shape, const std::string& offsets) {
  return image_error(R"({"a":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}",
                     "abcdefghijkl");
}

TEST(Safetensors, BadShapesAndOffsets) {
  EXPECT_EQ(entry_error("[2]", "[0,12]"), "f: tensor \"a\": expected 8 bytes for F32 [2], got 12");
  EXPECT_EQ(entry_error("[3]", "[0,16]"),
            "f: tensor \"a\": data_offsets: expected begin <= end <= 12 (the file's data bytes), got [0, 16]");
  EXPECT_EQ(entry_error("[3]", "[12,0]"),
            "f: tensor \"a\": data_offsets: expected begin <= end <= 12 (the file's data bytes), got [12, 0]");
  EXPECT_EQ(entry_error("[3]", "[0]"),
            "f: tensor \"a\": data_offsets: expected two offsets, got an array of 1 elements");
  EXPECT_EQ(entry_error("[3]", "[-4,8]"),
            "f: tensor \"a\": data_offsets: expected integers that are not negative, got -4");
  EXPECT_EQ(entry_error("[3]", "[0,12.5]"),
            "f: tensor \"a\": data_offsets: expected integers that are not negative, got 12.5");
  EXPECT_EQ(entry_error("[-1]", "[0,12]"), "f: tensor \"a\": shape: expected sizes in [0, 2^48], got -1");
  EXPECT_EQ(entry_error("[1.5]", "[0,12]"), "f: tensor \"a\": shape: expected sizes in [0, 2^48], got 1.5");
  EXPECT_EQ(entry_error("3", "[0,12]"), "f: tensor \"a\": shape: expected an array of at most 8 sizes, got 3");
  // 2^33 * 2^33 * 4 wraps to 0 in 64 bits.
  EXPECT_EQ(entry_error("[8589934592,8589934592]", "[0,0]"),
            "f: tensor \"a\": shape: needs more bytes than the file's 12 data bytes");
  EXPECT_EQ(entry_error("[4]", "[0,12]"), "f: tensor \"a\": shape: needs more bytes than the file's 12 data bytes");
}

TEST(Safetensors, OverlapsAndHoles) {
  const auto two = [](const std::string& first, const std::string& second) {
    return image_error(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + first +
                           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}",
                       "abcdefgh");
  };
  EXPECT_EQ(two("[0,4]", "[3,7]"),
            "f: tensor \"b\": expected it to begin at data byte 4 (where the one before ends), got 3");
  EXPECT_EQ(two("[0,4]", "[0,4]"),
            "f: tensor \"b\": expected it to begin at data byte 4 (where the one before ends), got 0");
  EXPECT_EQ(two("[4,8]", "[3,7]"),
            "f: tensor \"b\": expected it to begin at data byte 0 (where the one before ends), got 3");
}

TEST(Safetensors, NamesInErrorsStayOnOneLine) {
  EXPECT_EQ(image_error(R"({"a\nb":1})", ""), "f: tensor \"a\\nb\": expected an object, got 1");
}

TEST(Safetensors, WriterRoundTripsAndAligns) {
  const TemporaryFolder folder;
  const std::string data = "0123456789abcdef";
  TensorMap tensors;
  tensors["bytes"] = {FileDType::kU8, {3}, bytes_of(data).subspan(0, 3)};
  tensors["wide"] = {FileDType::kI64, {2}, bytes_of(data)};
  tensors["half"] = {FileDType::kBF16, {1, 3}, bytes_of(data).subspan(2, 6)};
  tensors["scalar"] = {FileDType::kF32, {}, bytes_of(data).subspan(4, 4)};
  tensors["none"] = {FileDType::kF8E8M0, {0}, {}};
  const auto path = folder.path() / "model.safetensors";
  folder.write("model.safetensors", "what was there before");
  write_safetensors(path, tensors, {{"format", "pt"}});

  const SafetensorsReader reader = SafetensorsReader::open_directory(folder.path());
  ASSERT_EQ(reader.tensors().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const StoredTensor* read = reader.find(name);
    ASSERT_NE(read, nullptr) << name;
    EXPECT_EQ(read->dtype, tensor.dtype);
    EXPECT_EQ(read->shape, tensor.shape);
    EXPECT_TRUE(std::equal(read->bytes.begin(), read->bytes.end(), tensor.bytes.begin(), tensor.bytes.end())) << name;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(read->bytes.data()) %
                  static_cast<std::uintptr_t>(file_dtype_bytes(read->dtype)),
              0U)
        << name;
  }
  // Nothing but the file is left.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), std::filesystem::directory_iterator()),
            1);
}

TEST(Safetensors, AnInterruptedWriteLeavesTheOldFile) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "model.safetensors";
  folder.write("model.safetensors", "old");
  {
    SafetensorsWriter writer(path, {{"a", FileDType::kU8, {2}}, {"b", FileDType::kU8, {1}}});
    writer.write("a", bytes_of("xy"));
    EXPECT_EQ(error_text(Status::kInvalidArgument, [&] { writer.finish(); }),
              "write_safetensors: expected 2 tensors, got 1");
  }
  EXPECT_EQ(file_text(path), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), std::filesystem::directory_iterator()),
            1);
}

TEST(Safetensors, WriterChecksItsArguments) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "x.safetensors";
  SafetensorsWriter writer(path, {{"a", FileDType::kF32, {2}}});
  EXPECT_EQ(error_text(Status::kInvalidArgument, [&] { writer.write("b", {}); }),
            "write_safetensors: expected tensor \"a\" next, got \"b\"");
  EXPECT_EQ(error_text(Status::kInvalidArgument, [&] { writer.write("a", bytes_of("xy")); }),
            "write_safetensors: tensor \"a\": expected 8 bytes for F32 [2], got 2");
  EXPECT_EQ(error_text(Status::kInvalidArgument,
                       [&] {
                         SafetensorsWriter(path, {{"a", FileDType::kU8, {1}}, {"a", FileDType::kU8, {1}}});
                       }),
            "write_safetensors: expected distinct tensor names, got \"a\" again or as a reserved name");
  const auto nowhere = folder.path() / "missing" / "x";
  EXPECT_NE(error_text(Status::kDataError, [&] { write_file(nowhere, {}); }).find("cannot be created: "),
            std::string::npos);
}

// ---- Folders ----

TEST(SafetensorsFolder, ReadsShards) {
  const TemporaryFolder folder;
  const std::string data = "abcdefgh";
  write_safetensors(folder.path() / "one.safetensors",
                    {{"a", {FileDType::kU8, {2}, bytes_of(data).subspan(0, 2)}},
                     {"extra", {FileDType::kU8, {1}, bytes_of(data).subspan(7, 1)}}});
  write_safetensors(folder.path() / "two.safetensors", {{"b", {FileDType::kU8, {3}, bytes_of(data).subspan(2, 3)}}});
  folder.write("model.safetensors.index.json",
               R"({"metadata":{"total_size":5},"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  SafetensorsReader reader = SafetensorsReader::open_directory(folder.path());
  const SafetensorsReader moved = std::move(reader);
  ASSERT_EQ(moved.tensors().size(), 2U);  // what the index does not list is not there
  EXPECT_EQ(static_cast<char>(moved.find("b")->bytes[0]), 'c');
  EXPECT_EQ(moved.find("extra"), nullptr);

  folder.write("model.safetensors.index.json", R"({"weight_map":{"c":"two.safetensors"}})");
  EXPECT_EQ(error_text(Status::kDataError, [&] { SafetensorsReader::open_directory(folder.path()); }),
            (folder.path() / "model.safetensors.index.json").string() +
                ": tensor \"c\": expected it in two.safetensors, which does not have it");
  folder.write("model.safetensors.index.json", R"({"weight_map":{"c":"gone.safetensors"}})");
  EXPECT_NE(error_text(Status::kDataError, [&] { SafetensorsReader::open_directory(folder.path()); })
                .find("gone.safetensors: cannot be opened: "),
            std::string::npos);
}

TEST(SafetensorsFolder, AnIndexCannotLeaveItsFolder) {
  for (const char* file :
       {"../x.safetensors", "/etc/passwd", "a/b.safetensors", "..", ".", "", ".hidden", "a\\\\b", "a\\u0000b"}) {
    const std::string text = R"({"weight_map":{"t":")" + std::string(file) + "\"}}";
    const std::string error = error_text(Status::kDataError, [&] { parse_safetensors_index(text, "i"); });
    EXPECT_TRUE(error.starts_with("i: weight_map: \"t\": expected the name of a file in the same folder, got \""))
        << error;
  }
  EXPECT_EQ(error_text(Status::kDataError, [] { parse_safetensors_index(R"({"weight_map":{"t":1}})", "i"); }),
            "i: weight_map: \"t\": expected the name of a file in the same folder, got 1");
  EXPECT_EQ(error_text(Status::kDataError, [] { parse_safetensors_index("{}", "i"); }),
            "i: weight_map: expected an object, got nothing");
  EXPECT_EQ(error_text(Status::kDataError, [] { parse_safetensors_index("[]", "i"); }),
            "i: weight_map: expected an object, got nothing");
}

// Opening a pipe for reading waits until somebody writes: this test would never end.
TEST(SafetensorsFolder, PipesAreRefusedAndNotWaitedFor) {
  const TemporaryFolder folder;
  const auto pipe = folder.path() / "model.safetensors";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::string expected = pipe.string() + ": not a regular file";
  EXPECT_EQ(error_text(Status::kDataError, [&] { SafetensorsReader::open_directory(folder.path()); }), expected);
  EXPECT_EQ(error_text(Status::kDataError, [&] { read_text_file(pipe, 100); }), expected);
}

TEST(SafetensorsFolder, LoopsOfLinksAreErrorsOfOurs) {
  const TemporaryFolder folder;
  const auto error = [&](const char* file) {
    std::filesystem::create_symlink(file, folder.path() / file);
    const std::string text = error_text(Status::kDataError, [&] { SafetensorsReader::open_directory(folder.path()); });
    std::filesystem::remove(folder.path() / file);
    return text;
  };
  const auto expected = [&](const char* file) {
    return (folder.path() / file).string() + ": " +
           std::make_error_code(std::errc::too_many_symbolic_link_levels).message();
  };
  for (const char* file : {"model.safetensors", "model.safetensors.index.json"}) EXPECT_EQ(error(file), expected(file));
  std::filesystem::create_symlink("config.json", folder.path() / "config.json");
  EXPECT_EQ(error_text(Status::kDataError, [&] { read_text_file(folder.path() / "config.json", 100); }),
            expected("config.json"));
}

TEST(SafetensorsFolder, NothingThere) {
  const TemporaryFolder folder;
  EXPECT_EQ(error_text(Status::kDataError, [&] { SafetensorsReader::open_directory(folder.path()); }),
            folder.path().string() + ": expected model.safetensors or model.safetensors.index.json, got neither");
  folder.write("model.safetensors", "");
  EXPECT_EQ(error_text(Status::kDataError, [&] { SafetensorsReader::open_directory(folder.path()); }),
            (folder.path() / "model.safetensors").string() + ": expected at least 8 bytes, got 0");
}

}  // namespace
}  // namespace tamis::model
