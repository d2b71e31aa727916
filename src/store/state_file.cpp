#include "src/store/state_file.hpp"

#include <fmt/core.h>
#include <hdf5.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "src/core/hash.hpp"
#include "src/store/open.hpp"

static_assert(std::endian::native == std::endian::little, "state.h5 is written as memory has it");

namespace choir {
namespace {

constexpr hsize_t kDatasetAlignment = 4096;     // alignment of datasets in the file
constexpr hsize_t kAlignedFrom = 64 * 1024;     // smaller ones are not aligned
constexpr std::int64_t kBytesPerObject = 1024;  // upper bound of HDF5's own bytes per object

/// An HDF5 identifier, closed by the function of its kind.
class Handle {
 public:
  using Close = herr_t (*)(hid_t);
  Handle(hid_t id, Close closer, const std::string& what) : id_(id), close_(closer) {
    if (id < 0) throw StorageError("HDF5 cannot " + what);
  }
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Handle& operator=(Handle&&) = delete;
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  operator hid_t() const { return id_; }  // NOLINT: passes as the C type
  /// For files, whose close writes and can fail.
  void close(const std::string& what) {
    if (close_(std::exchange(id_, -1)) < 0) throw StorageError("HDF5 cannot " + what);
  }

 private:
  hid_t id_;
  Close close_;
};

void must(herr_t status, const std::string& what) {
  if (status < 0) throw StorageError("HDF5 cannot " + what);
}

/// Silences HDF5, which prints its error stack on stderr; errors are exceptions here.
class QuietErrors {
 public:
  QuietErrors() {
    H5Eget_auto2(H5E_DEFAULT, &function_, &data_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~QuietErrors() { H5Eset_auto2(H5E_DEFAULT, function_, data_); }
  QuietErrors(const QuietErrors&) = delete;
  QuietErrors& operator=(const QuietErrors&) = delete;

 private:
  H5E_auto2_t function_ = nullptr;
  void* data_ = nullptr;
};

Handle copied(hid_t type) {
  return {H5Tcopy(type), H5Tclose, "copy a type"};
}

/// A 16-bit float described by its fields, so that h5dump prints numbers.
Handle small_float(std::size_t exponent_bits, std::size_t mantissa_bits, std::size_t bias) {
  Handle type = copied(H5T_IEEE_F32LE);
  must(H5Tset_fields(type, 15, mantissa_bits, exponent_bits, 0, mantissa_bits), "set fields");
  must(H5Tset_size(type, 2), "set the size of a type");
  must(H5Tset_ebias(type, bias), "set a bias");
  return type;
}

Handle file_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return copied(H5T_IEEE_F64LE);
    case DType::f32:
      return copied(H5T_IEEE_F32LE);
    case DType::bf16:
      return small_float(8, 7, 127);
    case DType::f16:
      return small_float(5, 10, 15);
    case DType::i64:
      return copied(H5T_STD_I64LE);
    case DType::i32:
      return copied(H5T_STD_I32LE);
    case DType::u16:
      return copied(H5T_STD_U16LE);
    case DType::u8:
      return copied(H5T_STD_U8LE);
  }
  throw Error(ExitCode::other, "element type without a file type");
}

Handle space_of(const Shape& shape) {
  if (shape.rank() == 0) return {H5Screate(H5S_SCALAR), H5Sclose, "make a scalar space"};
  std::array<hsize_t, Shape::kMaxRank> extents{};
  for (int dim = 0; dim < shape.rank(); ++dim)
    extents[static_cast<std::size_t>(dim)] = static_cast<hsize_t>(shape[dim]);
  return {H5Screate_simple(shape.rank(), extents.data(), nullptr), H5Sclose, "make a space"};
}

/// Disables locks, which fail on many parallel file systems and protect nothing here.
void without_locks([[maybe_unused]] hid_t access) {
#if H5_VERSION_GE(1, 10, 7) && (!H5_VERSION_GE(1, 12, 0) || H5_VERSION_GE(1, 12, 1))
  H5Pset_file_locking(access, false, true);
#endif
}

Handle access_for_writing(std::size_t tensors) {
  Handle access{H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "make access properties"};
  without_locks(access);
  must(H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_LATEST), "set the versions");
  must(H5Pset_alignment(access, kAlignedFrom, kDatasetAlignment), "set the alignment");
  // Keeps HDF5's own bytes together instead of between the tensors.
  must(H5Pset_meta_block_size(access, 32 * 1024 + tensors * kBytesPerObject / 2), "set the block");
  return access;
}

/// Equal states give equal bytes, so the file contains no creation times.
Handle untimed(hid_t kind) {
  Handle properties{H5Pcreate(kind), H5Pclose, "make creation properties"};
  must(H5Pset_obj_track_times(properties, false), "leave times out");
  return properties;
}

/// Creates the missing groups above "a/b/name".
void make_groups(hid_t file, const std::string& name, hid_t creation) {
  for (auto at = name.find('/'); at != std::string::npos; at = name.find('/', at + 1)) {
    const std::string group = name.substr(0, at);
    if (group.empty() || H5Lexists(file, group.c_str(), H5P_DEFAULT) > 0) continue;
    const Handle made{H5Gcreate2(file, group.c_str(), H5P_DEFAULT, creation, H5P_DEFAULT), H5Gclose,
                      "make the group " + group};
  }
}

TensorRecord make_dataset(hid_t file, const StoredTensor& tensor, hid_t creation) {
  const Handle type = file_type(tensor.dtype);
  const Handle space = space_of(tensor.shape);
  const Handle set{
      H5Dcreate2(file, tensor.name.c_str(), type, space, H5P_DEFAULT, creation, H5P_DEFAULT),
      H5Dclose, "make the dataset " + tensor.name};
  TensorRecord record{tensor.name, tensor.dtype, tensor.shape, 0, 0};
  if (record.bytes() == 0) return record;
  const haddr_t offset = H5Dget_offset(set);
  if (offset == HADDR_UNDEF) throw StorageError("HDF5 gave no place to " + tensor.name);
  record.offset = static_cast<std::int64_t>(offset);
  return record;
}

void write_attribute(hid_t file, const char* name, hid_t type, const void* value) {
  const Handle space{H5Screate(H5S_SCALAR), H5Sclose, "make a scalar space"};
  const Handle attribute{H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose,
                         std::string("make the attribute ") + name};
  must(H5Awrite(attribute, type, value), std::string("write the attribute ") + name);
}

void write_attributes(hid_t file, const CheckpointMeta& meta) {
  const std::int64_t version = kCheckpointFormat;
  write_attribute(file, "format_version", H5T_NATIVE_INT64, &version);
  write_attribute(file, "step", H5T_NATIVE_INT64, &meta.step);
  const Handle text = copied(H5T_C_S1);
  must(H5Tset_size(text, meta.json.size() + 1), "set the size of a text");
  must(H5Tset_cset(text, H5T_CSET_UTF8), "set UTF-8");
  write_attribute(file, "meta", text, meta.json.c_str());
}

}  // namespace

std::int64_t state_file_estimate(const CheckpointMeta& meta,
                                 const std::vector<StoredTensor>& tensors) {
  const auto objects = static_cast<std::int64_t>(tensors.size()) + 64;
  std::int64_t bytes = static_cast<std::int64_t>(2 * meta.json.size());
  bytes += objects * (kBytesPerObject + static_cast<std::int64_t>(kDatasetAlignment));
  for (const StoredTensor& tensor : tensors)
    bytes += tensor.shape.count() * static_cast<std::int64_t>(size_of(tensor.dtype));
  return bytes;
}

std::vector<TensorRecord> lay_out_state_file(const std::string& path, const CheckpointMeta& meta,
                                             const std::vector<StoredTensor>& tensors) {
  const QuietErrors quiet;
  const Handle access = access_for_writing(tensors.size());
  const Handle file_creation = untimed(H5P_FILE_CREATE);
  Handle file{H5Fcreate(path.c_str(), H5F_ACC_TRUNC, file_creation, access), H5Fclose,
              "make " + path};
  const Handle group_creation = untimed(H5P_GROUP_CREATE);
  const Handle creation = untimed(H5P_DATASET_CREATE);
  must(H5Pset_layout(creation, H5D_CONTIGUOUS), "choose the contiguous layout");
  must(H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY), "allocate early");
  must(H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER), "leave datasets unfilled");
  write_attributes(file, meta);
  std::vector<TensorRecord> records;
  records.reserve(tensors.size());
  for (const StoredTensor& tensor : tensors) {
    make_groups(file, tensor.name, group_creation);
    records.push_back(make_dataset(file, tensor, creation));
  }
  file.close("write " + path);
  return records;
}

std::pair<std::string, std::string> hdf5_versions() {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return {fmt::format("{}.{}.{}", major, minor, release),
          fmt::format("{}.{}.{}", H5_VERS_MAJOR, H5_VERS_MINOR, H5_VERS_RELEASE)};
}

namespace {

/// Calls `find(bytes)` for each of HDF5's own regions and returns the first extent that it finds,
/// relative to the beginning of the file.
template <class Find>
std::optional<TextRecord> search(const File& state, const std::vector<FileRegion>& regions,
                                 const Find& find) {
  std::string bytes;
  for (const FileRegion& region : regions) {
    if (region.tensor >= 0) continue;
    // choir never writes this much between two tensors.
    if (region.bytes > 2 * kMostTextBytes)
      throw StorageError(
          fmt::format("{} has {} bytes in a row that belong to no tensor, more than choir writes",
                      state.path(), region.bytes));
    bytes.resize(static_cast<std::size_t>(region.bytes));
    state.read_at(bytes.data(), region.bytes, region.offset);
    if (std::optional<TextRecord> found = find(std::string_view(bytes))) {
      found->offset += region.offset;
      return found;
    }
  }
  return std::nullopt;
}

template <class Number>
Number little_endian(std::string_view bytes, std::size_t at) {
  Number value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

/// Finds the attribute "meta" in the form that HDF5 writes since version 1.8 (message 0x000C,
/// version 3): version, flags, sizes of the name, the type and the space, the character set, then
/// these three, then the text. The type is a text of fixed length; its class and its length are
/// checked.
std::optional<TextRecord> find_attribute(std::string_view bytes) {
  using std::string_view_literals::operator""sv;
  constexpr std::string_view kName = "meta\0"sv;
  constexpr std::size_t kBefore = 9, kTypeBytes = 8, kMostSpaceBytes = 64;
  constexpr unsigned char kVersion = 3, kTextClass = 3;
  for (std::size_t at = bytes.find(kName); at != std::string_view::npos;
       at = bytes.find(kName, at + 1)) {
    if (at < kBefore) continue;
    const std::size_t head = at - kBefore, type = at + kName.size();
    const auto type_bytes = little_endian<std::uint16_t>(bytes, head + 4);
    const auto space_bytes = little_endian<std::uint16_t>(bytes, head + 6);
    if (bytes[head] != kVersion || bytes[head + 1] != 0 ||
        little_endian<std::uint16_t>(bytes, head + 2) != kName.size() || type_bytes != kTypeBytes ||
        space_bytes > kMostSpaceBytes)
      continue;
    const std::size_t text = type + type_bytes + space_bytes;
    if (text > bytes.size() || (static_cast<unsigned char>(bytes[type]) & 0x0f) != kTextClass)
      continue;
    const auto length = little_endian<std::uint32_t>(bytes, type + 4);
    if (length > bytes.size() - text || length > kMostTextBytes) continue;
    const std::string_view all = bytes.substr(text, length);
    return TextRecord{static_cast<std::int64_t>(text),
                      static_cast<std::int64_t>(all.substr(0, all.find('\0')).size()), 0};
  }
  return std::nullopt;
}

}  // namespace

TextRecord locate_meta(const File& state, const std::vector<FileRegion>& regions,
                       const std::string& text) {
  const auto bytes = static_cast<std::int64_t>(text.size());
  const auto crc = crc32c(text.data(), text.size());
  if (bytes > kMostTextBytes)
    throw StorageError(
        fmt::format("the deck, the vocabulary and what else describes the run are "
                    "{} bytes, more than the {} of a checkpoint",
                    bytes, kMostTextBytes));
  const auto found = search(state, regions, [&](std::string_view own) {
    const std::size_t at = own.find(text);
    return at == std::string_view::npos
               ? std::nullopt
               : std::optional(TextRecord{static_cast<std::int64_t>(at), bytes, crc});
  });
  if (!found)
    throw StorageError("HDF5 has not written the description of the run to " + state.path() +
                       " in one piece");
  return *found;
}

std::string read_meta(const File& state, const std::vector<FileRegion>& regions,
                      const Manifest& manifest) {
  const auto record = manifest.meta ? manifest.meta : search(state, regions, find_attribute);
  if (!record)
    throw StorageError("the attribute meta of " + state.path() + " is not where choir writes it");
  std::string text(static_cast<std::size_t>(record->bytes), '\0');
  state.read_at(text.data(), record->bytes, record->offset);
  if (manifest.meta && crc32c(text.data(), text.size()) != record->crc32c)
    throw StorageError("the description of the run in " + state.path() + " is damaged");
  return text;
}

}  // namespace choir
