// Constants of GGUF and its tensor types, the reader, which checks every claim of the header, and
// the writer.

#include "src/store/gguf/gguf.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "choir/core/error.hpp"
#include "src/core/text.hpp"
#include "src/store/encoding.hpp"
#include "src/store/weight_file.hpp"

namespace choir::gguf {

inline constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
inline constexpr std::uint32_t kVersion = 3;
inline constexpr std::int64_t kAlignment = 32;  // unless general.alignment specifies another
inline constexpr const char* kAlignmentKey = "general.alignment";
inline constexpr const char *kPartNumberKey = "split.no", *kPartsKey = "split.count",
                            *kAllTensorsKey = "split.tensors.count";
inline constexpr std::uint32_t kStringType = 8, kArrayType = 9, kTypes = 13;
inline constexpr int kMostDims = 4;
inline constexpr std::int64_t kLongestName = 64;

constexpr std::int64_t aligned(std::int64_t offset, std::int64_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

inline constexpr std::array<std::pair<std::uint32_t, Encoding>, 20> kTensorTypes{
    {{0, Encoding::f32},     {1, Encoding::f16},     {2, Encoding::q4_0},  {3, Encoding::q4_1},
     {6, Encoding::q5_0},    {7, Encoding::q5_1},    {8, Encoding::q8_0},  {10, Encoding::q2_k},
     {11, Encoding::q3_k},   {12, Encoding::q4_k},   {13, Encoding::q5_k}, {14, Encoding::q6_k},
     {20, Encoding::iq4_nl}, {23, Encoding::iq4_xs}, {24, Encoding::i8},   {25, Encoding::i16},
     {26, Encoding::i32},    {27, Encoding::i64},    {28, Encoding::f64},  {30, Encoding::bf16}}};

/// std::nullopt for encodings that GGUF lacks.
std::optional<std::uint32_t> tensor_type(Encoding encoding);
/// std::nullopt for types that are not supported.
std::optional<Encoding> tensor_encoding(std::uint32_t type);
/// "IQ2_XXS", or "type 99", for messages.
std::string tensor_type_name(std::uint32_t type);
/// "F32, F16, ...": the types that are read.
std::string read_tensor_types();

}  // namespace choir::gguf

namespace choir {
namespace gguf {

std::optional<std::uint32_t> tensor_type(Encoding encoding) {
  for (const auto& [type, known] : kTensorTypes)
    if (known == encoding) return type;
  return {};
}

std::optional<Encoding> tensor_encoding(std::uint32_t type) {
  for (const auto& [known, encoding] : kTensorTypes)
    if (known == type) return encoding;
  return {};
}

std::string tensor_type_name(std::uint32_t type) {
  constexpr std::array<std::pair<std::uint32_t, const char*>, 22> kOthers{
      {{4, "Q4_2"},    {5, "Q4_3"},        {9, "Q8_1"},        {15, "Q8_K"},       {16, "IQ2_XXS"},
       {17, "IQ2_XS"}, {18, "IQ3_XXS"},    {19, "IQ1_S"},      {21, "IQ3_S"},      {22, "IQ2_S"},
       {29, "IQ1_M"},  {31, "Q4_0_4_4"},   {32, "Q4_0_4_8"},   {33, "Q4_0_8_8"},   {34, "TQ1_0"},
       {35, "TQ2_0"},  {36, "IQ4_NL_4_4"}, {37, "IQ4_NL_4_8"}, {38, "IQ4_NL_8_8"}, {39, "MXFP4"},
       {40, "NVFP4"},  {41, "Q1_0"}}};
  for (const auto& [known, name] : kOthers)
    if (known == type) return name;
  return fmt::format("type {}", type);
}

std::string read_tensor_types() {
  std::vector<std::string> names;
  for (const auto& [type, encoding] : kTensorTypes) names.emplace_back(name_of(encoding));
  return join(names, ", ");
}

}  // namespace gguf

void GgufMetadata::add(std::string key, GgufValue value) {
  CHOIR_CHECK(find(key) == nullptr, "{} is there already", key);
  pairs_.emplace_back(std::move(key), std::move(value));
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto found = std::find_if(pairs_.begin(), pairs_.end(),
                                  [&](const Pair& pair) { return pair.first == key; });
  return found == pairs_.end() ? nullptr : &found->second;
}

namespace {

using namespace gguf;

constexpr std::int64_t kLongestKey = 65535;
constexpr std::int64_t kMostPairs = 4096, kMostTensors = 1 << 20;
/// The limit of everything in front of the data; the largest vocabularies need a tenth of it.
constexpr std::int64_t kMostHeaderBytes = std::int64_t{256} << 20;

/// Reads the header from front to back. Whatever a length claims, it never allocates more memory
/// than the file has bytes.
class Cursor {
 public:
  explicit Cursor(const FileWindow& file) : file_(file) {}

  std::int64_t at() const { return at_; }
  std::int64_t left() const { return std::min(file_.bytes(), kMostHeaderBytes) - at_; }

  void take(void* to, std::int64_t bytes) {
    if (bytes > file_.bytes() - at_)
      refuse(fmt::format("ends in its header, at byte {}", file_.bytes()));
    if (bytes > left())
      refuse(fmt::format("has {} bytes, and a header of more than {} MiB", file_.bytes(),
                         kMostHeaderBytes >> 20));
    if (at_ < buffer_at_ || at_ + bytes > buffer_at_ + std::ssize(buffer_)) fill(bytes);
    std::memcpy(to, buffer_.data() + (at_ - buffer_at_), static_cast<std::size_t>(bytes));
    at_ += bytes;
  }
  template <class T>
  T number() {
    T value;
    take(&value, sizeof value);
    return value;
  }
  /// A count of items of at least `least` bytes each, for which the rest of the file must have
  /// room.
  std::int64_t count(std::int64_t least, std::int64_t most, const char* what) {
    const auto n = number<std::uint64_t>();
    if (n > static_cast<std::uint64_t>(std::min(most, left() / least)))
      refuse(fmt::format("claims {} {}", n, what));
    return static_cast<std::int64_t>(n);
  }
  std::string text(std::int64_t longest, const char* what) {
    std::string text(static_cast<std::size_t>(count(1, longest, what)), '\0');
    take(text.data(), std::ssize(text));
    return text;
  }
  [[noreturn]] void refuse(const std::string& why) const {
    throw StorageError(fmt::format("'{}' {}", file_.name(), why),
                       "the copy or download may be incomplete");
  }

 private:
  void fill(std::int64_t bytes) {
    constexpr std::int64_t kBuffer = 1 << 16;
    buffer_at_ = at_;
    buffer_.resize(static_cast<std::size_t>(std::min(std::max(bytes, kBuffer), left())));
    file_.read_at(buffer_.data(), std::ssize(buffer_), at_);
  }

  const FileWindow& file_;
  std::int64_t at_ = 0, buffer_at_ = 0;
  std::vector<char> buffer_;
};

bool take_bool(Cursor& from) {
  const auto byte = from.number<std::uint8_t>();
  if (byte > 1) from.refuse(fmt::format("has the truth value {}", byte));
  return byte == 1;
}

template <class T>
T take_value(Cursor& from) {
  if constexpr (std::is_same_v<T, bool>)
    return take_bool(from);
  else if constexpr (std::is_same_v<T, std::string>)
    return from.text(from.left(), "bytes in a text");
  else
    return from.number<T>();
}

template <class T>
std::vector<T> take_list(Cursor& from) {
  constexpr std::int64_t kLeast = std::is_same_v<T, std::string> ? 8 : sizeof(T);
  const std::int64_t n = from.count(kLeast, from.left(), "items in an array");
  std::vector<T> items;
  items.reserve(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) items.push_back(take_value<T>(from));
  return items;
}

GgufArray take_array(Cursor& from) {
  switch (const auto type = from.number<std::uint32_t>(); type) {
    case 0:
      return take_list<std::uint8_t>(from);
    case 1:
      return take_list<std::int8_t>(from);
    case 2:
      return take_list<std::uint16_t>(from);
    case 3:
      return take_list<std::int16_t>(from);
    case 4:
      return take_list<std::uint32_t>(from);
    case 5:
      return take_list<std::int32_t>(from);
    case 6:
      return take_list<float>(from);
    case 7:
      return take_list<bool>(from);
    case kStringType:
      return take_list<std::string>(from);
    case kArrayType:
      from.refuse("has an array of arrays, which is not supported");
    case 10:
      return take_list<std::uint64_t>(from);
    case 11:
      return take_list<std::int64_t>(from);
    case 12:
      return take_list<double>(from);
    default:
      from.refuse(fmt::format("has an array of the unknown type {}", type));
  }
}

GgufValue take_pair_value(Cursor& from, const std::string& key) {
  switch (const auto type = from.number<std::uint32_t>(); type) {
    case 0:
      return take_value<std::uint8_t>(from);
    case 1:
      return take_value<std::int8_t>(from);
    case 2:
      return take_value<std::uint16_t>(from);
    case 3:
      return take_value<std::int16_t>(from);
    case 4:
      return take_value<std::uint32_t>(from);
    case 5:
      return take_value<std::int32_t>(from);
    case 6:
      return take_value<float>(from);
    case 7:
      return take_value<bool>(from);
    case kStringType:
      return take_value<std::string>(from);
    case kArrayType:
      return take_array(from);
    case 10:
      return take_value<std::uint64_t>(from);
    case 11:
      return take_value<std::int64_t>(from);
    case 12:
      return take_value<double>(from);
    default:
      from.refuse(fmt::format("gives '{}' the unknown type {}", key, type));
  }
}

GgufMetadata take_metadata(Cursor& from, std::int64_t pairs) {
  GgufMetadata metadata;
  std::set<std::string> keys;
  for (std::int64_t i = 0; i < pairs; ++i) {
    std::string key = from.text(kLongestKey, "bytes in a key");
    if (!keys.insert(key).second) from.refuse("has the key '" + key + "' twice");
    GgufValue value = take_pair_value(from, key);
    metadata.add(std::move(key), std::move(value));
  }
  return metadata;
}

struct Record {
  TensorEntry entry;
  std::uint64_t offset = 0;  // offset in the data
};

/// One file: all of a model, or a part of it.
struct GgufFile {
  FileWindow file;
  GgufMetadata metadata;
  std::vector<Record> records;
  std::int64_t data_at = 0;
};

Record take_record(Cursor& from, const std::string& path) {
  Record record;
  record.entry.name = from.text(kLongestName, "bytes in the name of a tensor");
  const std::string what = fmt::format("tensor '{}' in '{}'", record.entry.name, path);
  const auto dims = from.number<std::uint32_t>();
  if (dims > kMostDims) throw StorageError(fmt::format("{} has {} dimensions", what, dims));
  std::vector<std::int64_t> extents;
  for (std::uint32_t dim = 0; dim < dims; ++dim) extents.push_back(from.number<std::int64_t>());
  const auto type = from.number<std::uint32_t>();
  const std::optional<Encoding> encoding = tensor_encoding(type);
  if (!encoding)
    throw StorageError(
        fmt::format("{} is stored as {}, which is not supported", what, tensor_type_name(type)),
        "these types are read: " + read_tensor_types());
  const std::int64_t row = extents.empty() ? 1 : extents.front();
  if (row % block_elements(*encoding) != 0)
    throw StorageError(fmt::format("{} has rows of {} elements, not whole blocks of {}", what, row,
                                   name_of(*encoding)));
  std::reverse(extents.begin(), extents.end());
  record.entry.encoding = *encoding;
  record.entry.shape = checked_shape(extents, *encoding, what);
  record.offset = from.number<std::uint64_t>();
  return record;
}

std::int64_t checked_alignment(const GgufMetadata& metadata, const std::string& path) {
  if (metadata.find(kAlignmentKey) == nullptr) return kAlignment;
  const auto* alignment = metadata.get<std::uint32_t>(kAlignmentKey);
  if (alignment == nullptr || !std::has_single_bit(*alignment) || *alignment > 65536)
    throw StorageError(
        fmt::format("'{}' has a general.alignment that is not a power of two", path));
  return *alignment;
}

// Tensors follow each other in the order of the list, each padded.
void require_packed(const std::vector<Record>& records, std::int64_t data_at,
                    std::int64_t alignment, const FileWindow& file) {
  std::int64_t next = 0, reached = 0;
  for (const Record& record : records) {
    if (record.offset != static_cast<std::uint64_t>(next))
      throw StorageError(fmt::format("tensor '{}' in '{}' begins at byte {} of the data, not at {}",
                                     record.entry.name, file.name(), record.offset, next));
    reached = next + record.entry.bytes();
    next = aligned(reached, alignment);
    if (reached > file.bytes() - data_at)
      throw StorageError(
          fmt::format("tensor '{}' reaches byte {} of '{}', which has {}", record.entry.name,
                      data_at + reached, file.name(), file.bytes()),
          "the copy or download may be incomplete");
  }
  if (!records.empty() && file.bytes() > data_at + next)
    throw StorageError(fmt::format("'{}' has {} bytes behind its last tensor", file.name(),
                                   file.bytes() - data_at - next));
}

GgufFile open_file(const std::string& path) {
  GgufFile one{FileWindow(path), {}, {}};
  Cursor from(one.file);
  if (from.number<std::uint32_t>() != kMagic) from.refuse("is not a GGUF file");
  const auto version = from.number<std::uint32_t>();
  if (version != 2 && version != kVersion)
    throw StorageError(
        version == std::uint32_t{kVersion} << 24
            ? fmt::format("'{}' is a big-endian GGUF file", path)
            : fmt::format("'{}' has version {} of GGUF; 2 and 3 are supported", path, version),
        "convert the model again with llama.cpp's tools");
  const std::int64_t tensors = from.count(24, kMostTensors, "tensors");
  const std::int64_t pairs = from.count(13, kMostPairs, "pairs of keys and values");
  one.metadata = take_metadata(from, pairs);
  const std::int64_t alignment = checked_alignment(one.metadata, path);
  for (std::int64_t i = 0; i < tensors; ++i) one.records.push_back(take_record(from, path));
  one.data_at = aligned(from.at(), alignment);
  require_packed(one.records, one.data_at, alignment, one.file);
  return one;
}

/// A whole number of a model in several files; 0 if the file does not have the key.
template <class T>
T part_key(const GgufFile& one, const char* key) {
  if (one.metadata.find(key) == nullptr) return 0;
  const T* value = one.metadata.get<T>(key);
  if (value == nullptr || *value < 0)
    throw StorageError(fmt::format("'{}' has a value of another type for {}", one.file.name(), key),
                       "split the model again with llama-gguf-split");
  return *value;
}

std::string part_ending(int number, int parts) {
  return fmt::format("-{:05}-of-{:05}.gguf", number, parts);
}

/// The paths of the parts behind the first.
std::vector<std::string> further_parts(const GgufFile& first, const std::string& path) {
  const int parts = part_key<std::uint16_t>(first, kPartsKey);
  const int number = part_key<std::uint16_t>(first, kPartNumberKey) + 1;
  if (parts <= 1) return {};
  if (number != 1)
    throw StorageError(fmt::format("'{}' is part {} of {}", path, number, parts),
                       "give the first part, whose name ends in " + part_ending(1, parts));
  const std::string ending = part_ending(1, parts);
  if (!path.ends_with(ending))
    throw StorageError(
        fmt::format("'{}' is the first of {} parts, but its name does not end in {}, so that the "
                    "others cannot be found",
                    path, parts, ending),
        "give the parts the names that llama-gguf-split gave them, or join them with "
        "llama-gguf-split --merge");
  std::vector<std::string> paths;
  for (int part = 2; part <= parts; ++part) {
    paths.push_back(path.substr(0, path.size() - ending.size()) + part_ending(part, parts));
    std::error_code ignored;
    if (!std::filesystem::exists(paths.back(), ignored))
      throw StorageError(
          fmt::format("'{}' is missing, part {} of {} of a model", paths.back(), part, parts),
          "copy or download it beside the first part");
  }
  return paths;
}

void require_part(const GgufFile& one, int number, int parts) {
  const int own = part_key<std::uint16_t>(one, kPartNumberKey) + 1,
            all = part_key<std::uint16_t>(one, kPartsKey);
  if (own != number || all != parts)
    throw StorageError(fmt::format("'{}' is part {} of {}, but its name is that of part {} of {}",
                                   one.file.name(), own, all, number, parts),
                       "the parts may be of different models: download them again");
}

}  // namespace

struct GgufReader::State {
  std::vector<FileWindow> files;
  GgufMetadata metadata;
  struct Place {
    std::size_t file;
    std::int64_t offset;  // in the file
  };
  std::vector<Place> places;  // of the tensors
};

GgufReader::GgufReader(const std::string& path) : TensorReader(path), state_(new State) {
  std::vector<TensorEntry> entries;
  const auto add = [&](GgufFile one) {
    for (Record& record : one.records) {
      state_->places.push_back(
          {state_->files.size(), one.data_at + static_cast<std::int64_t>(record.offset)});
      entries.push_back(std::move(record.entry));
    }
    state_->files.push_back(std::move(one.file));
  };
  GgufFile first = open_file(path);
  const std::vector<std::string> others = further_parts(first, path);
  const int parts = static_cast<int>(others.size()) + 1;
  const std::int64_t announced = part_key<std::int32_t>(first, kAllTensorsKey);
  state_->metadata = std::move(first.metadata);
  add(std::move(first));
  for (int part = 2; part <= parts; ++part) {
    GgufFile one = open_file(others[static_cast<std::size_t>(part - 2)]);
    require_part(one, part, parts);
    add(std::move(one));
  }
  if (announced > 0 && announced != std::ssize(entries))
    throw StorageError(fmt::format("'{}' announces {} tensors, but its {} parts have {}", path,
                                   announced, parts, entries.size()),
                       "the parts may be of different models: download them again");
  set_tensors(std::move(entries));
}

GgufReader::~GgufReader() = default;

const GgufMetadata& GgufReader::metadata() const {
  return state_->metadata;
}

void GgufReader::read_encoded(std::size_t index, std::int64_t first, std::int64_t count,
                              std::byte* to) const {
  const Encoding encoding = tensors()[index].encoding;
  const State::Place& place = state_->places[index];
  state_->files[place.file].read_at(to, encoded_bytes(encoding, count),
                                    place.offset + encoded_bytes(encoding, first));
}

namespace {

using namespace gguf;

template <class T>
void put(std::string& to, const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    put(to, static_cast<std::uint64_t>(value.size()));
    to += value;
  } else if constexpr (std::is_same_v<T, bool>) {
    to += static_cast<char>(value ? 1 : 0);
  } else {
    to.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
}

template <class T>
void put(std::string& to, const std::vector<T>& items) {
  put(to, static_cast<std::uint64_t>(items.size()));
  for (const T& item : items) put(to, item);
}

void put(std::string& to, const std::monostate&) {
  CHOIR_CHECK(to.empty(), "an array of arrays");
}

void put(std::string& to, const GgufArray& array) {
  put(to, static_cast<std::uint32_t>(array.index()));
  std::visit([&](const auto& items) { put(to, items); }, array);
}

std::int64_t alignment_of(const GgufMetadata& metadata) {
  const auto* alignment = metadata.get<std::uint32_t>(kAlignmentKey);
  return alignment == nullptr ? kAlignment : *alignment;
}

void put_record(std::string& to, const TensorEntry& entry, std::int64_t offset) {
  const auto type = tensor_type(entry.encoding);
  const Shape& shape = entry.shape;
  CHOIR_CHECK(type.has_value(), "{} in GGUF", name_of(entry.encoding));
  CHOIR_CHECK(shape.rank() == 0 || shape.back() % block_elements(entry.encoding) == 0,
              "rows of {} {} are no whole blocks", entry.name, to_string(shape));
  if (std::ssize(entry.name) >= kLongestName || shape.rank() > kMostDims)
    throw StorageError(
        fmt::format("GGUF cannot hold tensor '{}' {}: names have less than {} "
                    "bytes, shapes at most {} dims",
                    entry.name, to_string(shape), kLongestName, kMostDims));
  put(to, entry.name);
  put(to, static_cast<std::uint32_t>(shape.rank()));
  for (int dim = shape.rank() - 1; dim >= 0; --dim) put(to, static_cast<std::uint64_t>(shape[dim]));
  put(to, *type);
  put(to, static_cast<std::uint64_t>(offset));
}

}  // namespace

struct GgufWriter::State {
  PendingFile file;
  std::string header;                 // including its padding
  std::vector<std::int64_t> offsets;  // positions of the tensors in the file
  std::int64_t bytes = 0;
};

GgufWriter::GgufWriter(const std::string& path, GgufMetadata metadata,
                       std::vector<TensorEntry> tensors)
    : TensorWriter(path, std::move(tensors)), state_(new State{PendingFile(path), {}, {}}) {
  const std::int64_t alignment = alignment_of(metadata);
  std::string& header = state_->header;
  put(header, kMagic);
  put(header, kVersion);
  put(header, static_cast<std::uint64_t>(this->tensors().size()));
  put(header, static_cast<std::uint64_t>(metadata.pairs().size()));
  for (const auto& [key, value] : metadata.pairs()) {
    put(header, key);
    put(header, static_cast<std::uint32_t>(value.index()));
    std::visit([&](const auto& held) { put(header, held); }, value);
  }
  std::int64_t reached = 0;
  for (const TensorEntry& entry : this->tensors()) {
    put_record(header, entry, reached);
    state_->offsets.push_back(reached);
    reached = aligned(reached + entry.bytes(), alignment);
  }
  header.resize(static_cast<std::size_t>(aligned(std::ssize(header), alignment)), '\0');
  for (std::int64_t& offset : state_->offsets) offset += std::ssize(header);
  state_->bytes = std::ssize(header) + reached;
}

GgufWriter::~GgufWriter() = default;

void GgufWriter::lay_out() {
  state_->file.create(state_->header, state_->bytes);
}

void GgufWriter::write_encoded(std::size_t index, std::int64_t first, std::int64_t count,
                               const std::byte* from) {
  const Encoding encoding = tensors()[index].encoding;
  state_->file.write_at(from, encoded_bytes(encoding, count),
                        state_->offsets[index] + encoded_bytes(encoding, first));
}

void GgufWriter::sync() {
  state_->file.sync();
}

void GgufWriter::rename_files() {
  state_->file.rename();
}

}  // namespace choir
