#include "src/store/npy.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>

#include "choir/core/error.hpp"
#include "src/store/tensor_file.hpp"
#include "src/store/weight_file.hpp"

namespace choir {
namespace {

/// NumPy's name of a type; "" for one that is not written.
std::string_view npy_type_of(DType type) {
  switch (type) {
    case DType::f32:
      return "<f4";
    case DType::f64:
      return "<f8";
    case DType::u16:
      return "<u2";
    case DType::i32:
      return "<i4";
    default:
      return {};
  }
}

// Version 1.0: a magic, the length of a Python dict, and the dict, padded so that data are aligned.
std::string header_of(const TensorView& array) {
  constexpr std::size_t kAlignment = 64, kFixedBytes = 10;
  std::string shape;
  for (int dim = 0; dim < array.shape.rank(); ++dim)
    shape += fmt::format("{}{},", dim > 0 ? " " : "", array.shape[dim]);
  if (array.shape.rank() > 1) shape.pop_back();  // only a tuple of one ends in a comma
  std::string dict = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}",
                                 npy_type_of(array.dtype), shape);
  const std::size_t bare = kFixedBytes + dict.size() + 1;
  dict.append((kAlignment - bare % kAlignment) % kAlignment, ' ');
  dict += '\n';
  std::string header("\x93NUMPY\x01\0", 8);
  header += static_cast<char>(dict.size() & 255u);
  header += static_cast<char>(dict.size() >> 8);
  return header + dict;
}

[[noreturn]] void refuse_array(const std::string& path, const std::string& why) {
  throw StorageError(fmt::format("'{}' {}", path, why),
                     "float32, float64, uint16, int32 and int64 arrays of numpy.save are "
                     "supported");
}

/// The rest of the header's dict after "'key':", from its value on.
std::string_view value_of(const std::string& dict, const std::string& key,
                          const std::string& path) {
  const std::size_t at = dict.find("'" + key + "':");
  if (at == std::string::npos) refuse_array(path, "has a header without '" + key + "'");
  const std::size_t value = dict.find_first_not_of(' ', at + key.size() + 3);
  if (value == std::string::npos) refuse_array(path, "has a header that ends early");
  return std::string_view(dict).substr(value);
}

/// "(2, 3)", "(2,)" or "()".
std::vector<std::int64_t> extents_of(std::string_view tuple, const std::string& path) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  const std::size_t end = tuple.find(')');
  if (tuple[0] != '(' || end == std::string_view::npos)
    refuse_array(path, "has a header whose shape is not a tuple");
  std::vector<std::int64_t> extents;
  bool in_number = false;
  for (const char c : tuple.substr(1, end - 1)) {
    const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!digit && c != ' ' && c != ',') refuse_array(path, "has a header with an odd shape");
    if (digit && !in_number) extents.push_back(0);
    if (digit) extents.back() = 10 * extents.back() + (c - '0');
    if (digit && extents.back() > kMost) refuse_array(path, "has too large a shape");
    in_number = digit;
  }
  return extents;
}

Encoding encoding_of_npy(std::string_view descr, const std::string& path) {
  const std::pair<std::string_view, Encoding> known[] = {{"'<f4'", Encoding::f32},
                                                         {"'<f8'", Encoding::f64},
                                                         {"'<u2'", Encoding::u16},
                                                         {"'<i4'", Encoding::i32},
                                                         {"'<i8'", Encoding::i64}};
  for (const auto& [name, encoding] : known)
    if (descr.starts_with(name)) return encoding;
  refuse_array(path, fmt::format("has elements of type {}", descr.substr(0, descr.find(','))));
}

template <class T>
void widen(const std::string& bytes, std::vector<double>& to) {
  const T* from = reinterpret_cast<const T*>(bytes.data());
  to.assign(from, from + bytes.size() / sizeof(T));
}

}  // namespace

void write_npy(const std::string& path, const TensorView& array) {
  CHOIR_CHECK(!npy_type_of(array.dtype).empty(), "an array of {}", name_of(array.dtype));
  const std::string header = header_of(array);
  const auto head = std::ssize(header), bytes = static_cast<std::int64_t>(array.bytes());
  PendingFile file(path);
  file.create(header, head + bytes);
  file.write_at(array.data, bytes, head);
  file.sync();
  file.rename();
}

NpyArray read_npy(const std::string& path) {
  constexpr std::int64_t kFixedBytes = 10;
  constexpr std::int64_t kMostMiB = 4096;
  const FileWindow file(path);
  if (file.bytes() > kMostMiB << 20)
    refuse_array(path, fmt::format("has {} bytes, more than {} MiB", file.bytes(), kMostMiB));
  if (file.bytes() < kFixedBytes || file.text_at(0, 6) != "\x93NUMPY")
    refuse_array(path, "is not an array of NumPy");
  if (file.number_at<std::uint8_t>(6) != 1) refuse_array(path, "is of a version other than 1");
  const std::int64_t dict_bytes = file.number_at<std::uint16_t>(8);
  if (kFixedBytes + dict_bytes > file.bytes()) refuse_array(path, "ends within its header");
  const std::string dict = file.text_at(kFixedBytes, dict_bytes);
  if (!value_of(dict, "fortran_order", path).starts_with("False"))
    refuse_array(path, "is in Fortran order");
  const Encoding encoding = encoding_of_npy(value_of(dict, "descr", path), path);
  NpyArray array;
  array.in_f32 = encoding == Encoding::f32;
  array.shape = checked_shape(extents_of(value_of(dict, "shape", path), path), encoding,
                              "the array in '" + path + "'");
  const std::int64_t bytes = encoded_bytes(encoding, array.shape.count());
  if (kFixedBytes + dict_bytes + bytes != file.bytes())
    refuse_array(path, fmt::format("has {} bytes, but its header describes {}", file.bytes(),
                                   kFixedBytes + dict_bytes + bytes));
  const std::string data = file.text_at(kFixedBytes + dict_bytes, bytes);
  switch (encoding) {
    case Encoding::f32:
      widen<float>(data, array.values);
      break;
    case Encoding::f64:
      widen<double>(data, array.values);
      break;
    case Encoding::u16:
      widen<std::uint16_t>(data, array.values);
      break;
    case Encoding::i32:
      widen<std::int32_t>(data, array.values);
      break;
    default:
      widen<std::int64_t>(data, array.values);
  }
  return array;
}

}  // namespace choir
