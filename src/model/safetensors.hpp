#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tamis::model {

/// Element types of a safetensors file that a DeepSeek-V4 checkpoint uses.
enum class FileDType : std::uint8_t { kF32, kF16, kBF16, kF8E4M3, kF8E8M0, kU8, kI8, kI32, kI64 };

/// Bytes of one element.
std::int64_t file_dtype_bytes(FileDType dtype);
/// The name in the file: F32, F16, BF16, F8_E4M3, F8_E8M0, U8, I8, I32, I64.
const char* file_dtype_name(FileDType dtype);

/// Product of the sizes; 0 if any is 0, however large the others are.
std::int64_t element_count(std::span<const std::int64_t> shape);

/// One tensor in a mapped file. `bytes` lives as long as the reader and may be unaligned.
struct StoredTensor {
  FileDType dtype = FileDType::kF32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;

  std::int64_t numel() const { return element_count(shape); }
};

/// As errors print it: [2, 3].
std::string shape_text(std::span<const std::int64_t> shape);

using TensorMap = std::map<std::string, StoredTensor, std::less<>>;

/// Checks a whole safetensors image and lists its tensors, which point into `image`. Every byte after the header
/// belongs to exactly one tensor: overlaps, holes and truncation are errors, as are unknown dtypes and duplicate names.
/// @param name  What errors call the file.
/// @throws Error kDataError, one line that names file, tensor, expected and got.
TensorMap parse_safetensors(std::span<const std::byte> image, const std::string& name);

/// Lists the shard files of a model.safetensors.index.json: tensor name -> file name. File names are plain names
/// without a directory; anything else is an error, so an index cannot make us read outside its folder.
std::map<std::string, std::string, std::less<>> parse_safetensors_index(std::string_view text, const std::string& name);

/// A file mapped read-only. Movable; unmaps when destroyed.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// The tensors of a model folder: model.safetensors, or model.safetensors.index.json and its shards.
class SafetensorsReader {
 public:
  /// @throws Error kDataError if neither is there, or if a file is not what its format promises.
  static SafetensorsReader open_directory(const std::filesystem::path& directory);
  static SafetensorsReader open_file(const std::filesystem::path& file);

  const TensorMap& tensors() const { return tensors_; }
  /// Null if there is none of that name.
  const StoredTensor* find(std::string_view name) const;

 private:
  std::vector<MappedFile> files_;
  TensorMap tensors_;
};

/// A file written under a temporary name in the same folder, flushed to disk and then renamed, so that a crash leaves
/// the old file or the new one. Without commit() the temporary file is removed.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(std::span<const std::byte> bytes);
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int fd_ = -1;
};

/// A tensor to be written.
struct TensorSpec {
  std::string name;
  FileDType dtype = FileDType::kF32;
  std::vector<std::int64_t> shape;

  std::int64_t bytes() const { return element_count(shape) * file_dtype_bytes(dtype); }
};

/// Writes one safetensors file tensor by tensor, so that only one of them need be in memory.
class SafetensorsWriter {
 public:
  /// @throws Error kInvalidArgument if a name comes twice; kDataError if the file cannot be written.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorSpec> tensors,
                    const std::map<std::string, std::string>& metadata = {});

  /// In the order in which write() must be called: larger elements first, then by name, which keeps every tensor
  /// aligned to its element size.
  const std::vector<TensorSpec>& tensors() const { return tensors_; }

  /// @throws Error kInvalidArgument if it is not this tensor's turn or the bytes are not its shape's.
  void write(std::string_view name, std::span<const std::byte> bytes);

  /// Puts the file in place. @throws Error kInvalidArgument if tensors are missing.
  void finish();

 private:
  std::vector<TensorSpec> tensors_;
  std::size_t next_ = 0;
  AtomicFile file_;
};

/// Writes all tensors, which are in memory, to one file.
void write_safetensors(const std::filesystem::path& path, const TensorMap& tensors,
                       const std::map<std::string, std::string>& metadata = {});

/// Replaces a file's contents in the same crash-safe way.
void write_file(const std::filesystem::path& path, std::span<const std::byte> contents);

}  // namespace tamis::model
