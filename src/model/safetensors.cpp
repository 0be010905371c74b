#include "model/safetensors.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "core/check.hpp"
#include "model/json_file.hpp"

namespace tamis::model {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little endian and mapped as they are");

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // The format's own limit.
constexpr std::uint64_t kMaxIndexBytes = 256U << 20;
constexpr std::size_t kMaxRank = 8;
constexpr std::size_t kLengthBytes = 8;

struct DTypeRow {
  FileDType dtype;
  const char* name;
  std::int64_t bytes;
};
constexpr DTypeRow kDTypes[] = {
    {FileDType::kF32, "F32", 4},        {FileDType::kF16, "F16", 2},        {FileDType::kBF16, "BF16", 2},
    {FileDType::kF8E4M3, "F8_E4M3", 1}, {FileDType::kF8E8M0, "F8_E8M0", 1}, {FileDType::kU8, "U8", 1},
    {FileDType::kI8, "I8", 1},          {FileDType::kI32, "I32", 4},        {FileDType::kI64, "I64", 8},
};

const DTypeRow& dtype_row(FileDType dtype) { return kDTypes[static_cast<std::size_t>(dtype)]; }

std::string system_error_text() { return std::generic_category().message(errno); }

// Whole file names only: no folders, no "..", no hidden control characters.
bool is_plain_file_name(std::string_view name) {
  if (name.empty() || name.front() == '.' || name.size() > 255) return false;
  return std::none_of(name.begin(), name.end(),
                      [](char c) { return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20; });
}

// The tensor's entry in the header, checked against the number of data bytes.
struct Extent {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

Extent parse_entry(const std::string& where, const Json& entry, std::uint64_t data_bytes, StoredTensor& tensor) {
  TAMIS_CHECK(entry.is_object(), Status::kDataError, where, ": expected an object, got ", json_text(entry));
  for (const auto& [key, value] : entry.items()) {
    TAMIS_CHECK(key == "dtype" || key == "shape" || key == "data_offsets", Status::kDataError, where,
                ": expected the keys dtype, shape and data_offsets, got ", quote(key));
  }
  TAMIS_CHECK(entry.size() == 3, Status::kDataError, where, ": expected the keys dtype, shape and data_offsets, got ",
              entry.size(), " of them");

  const Json& dtype = entry["dtype"];
  const auto* row = std::find_if(std::begin(kDTypes), std::end(kDTypes),
                                 [&](const DTypeRow& r) { return dtype.is_string() && dtype == r.name; });
  TAMIS_CHECK(row != std::end(kDTypes), Status::kDataError, where,
              ": dtype: expected F32, F16, BF16, F8_E4M3, F8_E8M0, U8, I8, I32 or I64, got ", json_text(dtype));
  tensor.dtype = row->dtype;

  const Json& shape = entry["shape"];
  TAMIS_CHECK(shape.is_array() && shape.size() <= kMaxRank, Status::kDataError, where,
              ": shape: expected an array of at most ", kMaxRank, " sizes, got ", json_text(shape));
  bool empty = false;  // A zero anywhere, whatever the other sizes.
  for (const Json& extent : shape) {
    TAMIS_CHECK(extent.is_number_unsigned() && extent.get<std::uint64_t>() <= (std::uint64_t{1} << 48),
                Status::kDataError, where, ": shape: expected sizes in [0, 2^48], got ", json_text(extent));
    tensor.shape.push_back(extent.get<std::int64_t>());
    empty = empty || tensor.shape.back() == 0;
  }
  // A product of 64-bit sizes wraps silently, so it is bounded at each step.
  std::uint64_t bytes = empty ? 0 : static_cast<std::uint64_t>(row->bytes);
  for (std::int64_t extent : tensor.shape) {
    if (empty) break;
    const auto size = static_cast<std::uint64_t>(extent);
    TAMIS_CHECK(bytes <= data_bytes / size, Status::kDataError, where, ": shape: needs more bytes than the file's ",
                data_bytes, " data bytes");
    bytes *= size;
  }

  const Json& offsets = entry["data_offsets"];
  TAMIS_CHECK(offsets.is_array() && offsets.size() == 2, Status::kDataError, where,
              ": data_offsets: expected two offsets, got ", json_text(offsets));
  for (const Json& offset : offsets) {
    TAMIS_CHECK(offset.is_number_unsigned(), Status::kDataError, where,
                ": data_offsets: expected integers that are not negative, got ", json_text(offset));
  }
  const Extent extent{offsets[0].get<std::uint64_t>(), offsets[1].get<std::uint64_t>()};
  TAMIS_CHECK(extent.begin <= extent.end && extent.end <= data_bytes, Status::kDataError, where,
              ": data_offsets: expected begin <= end <= ", data_bytes, " (the file's data bytes), got [", extent.begin,
              ", ", extent.end, "]");
  TAMIS_CHECK(extent.end - extent.begin == bytes, Status::kDataError, where, ": expected ", bytes, " bytes for ",
              row->name, " ", shape_text(tensor.shape), ", got ", extent.end - extent.begin);
  return extent;
}

}  // namespace

std::int64_t file_dtype_bytes(FileDType dtype) { return dtype_row(dtype).bytes; }
const char* file_dtype_name(FileDType dtype) { return dtype_row(dtype).name; }

std::int64_t element_count(std::span<const std::int64_t> shape) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::int64_t n = 1;
  for (std::int64_t extent : shape) n *= extent;
  return n;
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

TensorMap parse_safetensors(std::span<const std::byte> image, const std::string& name) {
  TAMIS_CHECK(image.size() >= kLengthBytes, Status::kDataError, name, ": expected at least 8 bytes, got ",
              image.size());
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, image.data(), sizeof header_bytes);
  const std::uint64_t rest = image.size() - kLengthBytes;
  TAMIS_CHECK(header_bytes <= rest && header_bytes <= kMaxHeaderBytes, Status::kDataError, name,
              ": header: expected at most ", std::min(rest, kMaxHeaderBytes), " bytes, got a length of ", header_bytes);
  const std::string_view header_text(reinterpret_cast<const char*>(image.data()) + kLengthBytes,
                                     static_cast<std::size_t>(header_bytes));
  TAMIS_CHECK(header_text.starts_with('{'), Status::kDataError, name, ": header: expected it to begin with '{'");
  const Json header = parse_json(header_text, name);

  const auto data = image.subspan(kLengthBytes + static_cast<std::size_t>(header_bytes));
  struct Placed {
    Extent extent;
    const std::string* tensor;
  };
  std::vector<Placed> placed;
  TensorMap tensors;
  for (const auto& [tensor_name, entry] : header.items()) {
    if (tensor_name == "__metadata__") {
      TAMIS_CHECK(entry.is_object(), Status::kDataError, name, ": __metadata__: expected an object, got ",
                  json_text(entry));
      for (const auto& [key, value] : entry.items()) {
        TAMIS_CHECK(value.is_string(), Status::kDataError, name, ": __metadata__: ", quote(key),
                    ": expected a string, got ", json_text(value));
      }
      continue;
    }
    StoredTensor tensor;
    const Extent extent = parse_entry(name + ": tensor " + quote(tensor_name), entry, data.size(), tensor);
    tensor.bytes =
        data.subspan(static_cast<std::size_t>(extent.begin), static_cast<std::size_t>(extent.end - extent.begin));
    const auto [it, inserted] = tensors.emplace(tensor_name, std::move(tensor));
    placed.push_back({extent, &it->first});
  }

  // In file order each tensor must begin where the one before ended, and the last must end with the file.
  std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::pair(a.extent.begin, a.extent.end) < std::pair(b.extent.begin, b.extent.end);
  });
  std::uint64_t end = 0;
  for (const Placed& p : placed) {
    TAMIS_CHECK(p.extent.begin == end, Status::kDataError, name, ": tensor ", quote(*p.tensor),
                ": expected it to begin at data byte ", end, " (where the one before ends), got ", p.extent.begin);
    end = p.extent.end;
  }
  TAMIS_CHECK(end == data.size(), Status::kDataError, name, ": expected ", end, " data bytes, got ", data.size());
  return tensors;
}

std::map<std::string, std::string, std::less<>> parse_safetensors_index(std::string_view text,
                                                                        const std::string& name) {
  const Json root = parse_json(text, name);
  TAMIS_CHECK(root.is_object() && root.contains("weight_map") && root["weight_map"].is_object(), Status::kDataError,
              name, ": weight_map: expected an object, got ",
              root.is_object() && root.contains("weight_map") ? json_text(root["weight_map"]) : "nothing");
  std::map<std::string, std::string, std::less<>> files;
  for (const auto& [tensor, file] : root["weight_map"].items()) {
    TAMIS_CHECK(file.is_string() && is_plain_file_name(file.get_ref<const std::string&>()), Status::kDataError, name,
                ": weight_map: ", quote(tensor), ": expected the name of a file in the same folder, got ",
                json_text(file));
    files.emplace(tensor, file.get<std::string>());
  }
  return files;
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  // O_NONBLOCK, or opening a pipe would wait for a writer; regular files are read as ever.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  TAMIS_CHECK(fd >= 0, Status::kDataError, path.string(), ": cannot be opened: ", system_error_text());
  struct ::stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    core::fail(Status::kDataError, path.string(), ": not a regular file");
  }
  size_ = static_cast<std::size_t>(info.st_size);
  if (size_ > 0) {
    void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    const std::string reason = address == MAP_FAILED ? system_error_text() : std::string();
    ::close(fd);
    TAMIS_CHECK(address != MAP_FAILED, Status::kDataError, path.string(), ": cannot be mapped: ", reason);
    data_ = static_cast<const std::byte*>(address);
  } else {
    ::close(fd);
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

const StoredTensor* SafetensorsReader::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

SafetensorsReader SafetensorsReader::open_file(const std::filesystem::path& file) {
  SafetensorsReader reader;
  reader.files_.emplace_back(file);
  reader.tensors_ = parse_safetensors(reader.files_.back().bytes(), file.string());
  return reader;
}

SafetensorsReader SafetensorsReader::open_directory(const std::filesystem::path& directory) {
  const auto single = directory / "model.safetensors";
  if (file_exists(single)) return open_file(single);
  const auto index_path = directory / "model.safetensors.index.json";
  TAMIS_CHECK(file_exists(index_path), Status::kDataError, directory.string(),
              ": expected model.safetensors or model.safetensors.index.json, got neither");
  const auto index = parse_safetensors_index(read_text_file(index_path, kMaxIndexBytes), index_path.string());

  // The index decides which shard a tensor comes from; tensors of a shard that it does not list are left alone.
  std::map<std::string, TensorMap> shards;
  SafetensorsReader reader;
  for (const auto& [tensor, file] : index) {
    auto shard = shards.find(file);
    if (shard == shards.end()) {
      const auto path = directory / file;
      reader.files_.emplace_back(path);
      shard = shards.emplace(file, parse_safetensors(reader.files_.back().bytes(), path.string())).first;
    }
    const auto stored = shard->second.find(tensor);
    TAMIS_CHECK(stored != shard->second.end(), Status::kDataError, index_path.string(), ": tensor ", quote(tensor),
                ": expected it in ", file, ", which does not have it");
    reader.tensors_.emplace(tensor, std::move(stored->second));
  }
  return reader;
}

// ---- Writing ----

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
  temporary_ = path_;
  temporary_ += core::concat(".", ::getpid(), ".tmp");
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  TAMIS_CHECK(fd_ >= 0, Status::kDataError, temporary_.string(), ": cannot be created: ", system_error_text());
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) {
    ::close(fd_);
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ::ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    TAMIS_CHECK(n > 0, Status::kDataError, temporary_.string(), ": cannot be written: ", system_error_text());
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void AtomicFile::commit() {
  // The contents must be on disk before the name points at them, and the folder's entry after.
  TAMIS_CHECK(::fsync(fd_) == 0, Status::kDataError, temporary_.string(), ": cannot be flushed: ", system_error_text());
  TAMIS_CHECK(::rename(temporary_.c_str(), path_.c_str()) == 0, Status::kDataError, path_.string(),
              ": cannot be replaced: ", system_error_text());
  ::close(std::exchange(fd_, -1));
  const auto folder = path_.has_parent_path() ? path_.parent_path() : std::filesystem::path(".");
  const int folder_fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_fd >= 0) {
    ::fsync(folder_fd);  // Some file systems refuse this for folders; the rename itself has succeeded.
    ::close(folder_fd);
  }
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorSpec> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : tensors_(std::move(tensors)), file_(path) {
  // Larger elements first keeps every tensor aligned to its element size although the format allows no gaps.
  std::stable_sort(tensors_.begin(), tensors_.end(), [](const TensorSpec& a, const TensorSpec& b) {
    return std::pair(-file_dtype_bytes(a.dtype), std::string_view(a.name)) <
           std::pair(-file_dtype_bytes(b.dtype), std::string_view(b.name));
  });
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::int64_t offset = 0;
  for (const TensorSpec& tensor : tensors_) {
    TAMIS_CHECK(!tensor.name.empty() && tensor.name != "__metadata__" && !header.contains(tensor.name),
                Status::kInvalidArgument, "write_safetensors: expected distinct tensor names, got ", quote(tensor.name),
                " again or as a reserved name");
    const std::int64_t bytes = tensor.bytes();
    header[tensor.name] = {
        {"dtype", file_dtype_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  file_.write(std::as_bytes(std::span(&length, 1)));
  file_.write(std::as_bytes(std::span(text)));
}

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  TAMIS_CHECK(next_ < tensors_.size() && tensors_[next_].name == name, Status::kInvalidArgument,
              "write_safetensors: expected tensor ",
              next_ < tensors_.size() ? quote(tensors_[next_].name) : std::string("none"), " next, got ", quote(name));
  TAMIS_CHECK(static_cast<std::int64_t>(bytes.size()) == tensors_[next_].bytes(), Status::kInvalidArgument,
              "write_safetensors: tensor ", quote(name), ": expected ", tensors_[next_].bytes(), " bytes for ",
              file_dtype_name(tensors_[next_].dtype), " ", shape_text(tensors_[next_].shape), ", got ", bytes.size());
  file_.write(bytes);
  ++next_;
}

void SafetensorsWriter::finish() {
  TAMIS_CHECK(next_ == tensors_.size(), Status::kInvalidArgument, "write_safetensors: expected ", tensors_.size(),
              " tensors, got ", next_);
  file_.commit();
}

void write_safetensors(const std::filesystem::path& path, const TensorMap& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor.dtype, tensor.shape});
  SafetensorsWriter writer(path, std::move(specs), metadata);
  for (const TensorSpec& spec : writer.tensors()) writer.write(spec.name, tensors.find(spec.name)->second.bytes);
  writer.finish();
}

void write_file(const std::filesystem::path& path, std::span<const std::byte> contents) {
  AtomicFile file(path);
  file.write(contents);
  file.commit();
}

}  // namespace tamis::model
