#include "src/store/encoding.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "choir/core/error.hpp"
#include "src/store/quantised_blocks.hpp"

namespace choir {
namespace {

enum class Meaning : std::uint8_t { real, whole, opaque };

struct Traits {
  std::string_view name;
  int block_elements;
  int block_bytes;
  Meaning meaning;
};
// In the order of the enumeration.
constexpr std::array<Traits, 34> kTraits{
    {{"BOOL", 1, 1, Meaning::whole},         {"F4", 2, 1, Meaning::opaque},
     {"F6_E2M3", 4, 3, Meaning::opaque},     {"F6_E3M2", 4, 3, Meaning::opaque},
     {"U8", 1, 1, Meaning::whole},           {"I8", 1, 1, Meaning::whole},
     {"F8_E5M2", 1, 1, Meaning::opaque},     {"F8_E4M3", 1, 1, Meaning::opaque},
     {"F8_E8M0", 1, 1, Meaning::opaque},     {"F8_E4M3FNUZ", 1, 1, Meaning::opaque},
     {"F8_E5M2FNUZ", 1, 1, Meaning::opaque}, {"I16", 1, 2, Meaning::whole},
     {"U16", 1, 2, Meaning::whole},          {"F16", 1, 2, Meaning::real},
     {"BF16", 1, 2, Meaning::real},          {"I32", 1, 4, Meaning::whole},
     {"U32", 1, 4, Meaning::whole},          {"F32", 1, 4, Meaning::real},
     {"C64", 1, 8, Meaning::opaque},         {"F64", 1, 8, Meaning::real},
     {"I64", 1, 8, Meaning::whole},          {"U64", 1, 8, Meaning::whole},
     {"Q8_0", 32, 34, Meaning::real},        {"Q4_0", 32, 18, Meaning::real},
     {"Q4_1", 32, 20, Meaning::real},        {"Q5_0", 32, 22, Meaning::real},
     {"Q5_1", 32, 24, Meaning::real},        {"Q2_K", 256, 84, Meaning::real},
     {"Q3_K", 256, 110, Meaning::real},      {"Q4_K", 256, 144, Meaning::real},
     {"Q5_K", 256, 176, Meaning::real},      {"Q6_K", 256, 210, Meaning::real},
     {"IQ4_NL", 32, 18, Meaning::real},      {"IQ4_XS", 256, 136, Meaning::real}}};

const Traits& traits(Encoding encoding) {
  return kTraits[static_cast<std::size_t>(encoding)];
}

constexpr std::int64_t kEncodedPiece = 4096;  // elements: whole blocks of every type

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
void store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

// --- conversion of a file's elements to numbers ---

template <class Stored, class Number>
void widen_plain(const std::byte* from, std::int64_t count, Number* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto stored = load<Stored>(from + i * static_cast<std::int64_t>(sizeof(Stored)));
    if constexpr (std::is_same_v<Stored, bf16> || std::is_same_v<Stored, f16>)
      to[i] = static_cast<Number>(static_cast<float>(stored));
    else
      to[i] = static_cast<Number>(stored);
  }
}

template <class Number>
void widen_reals(const std::byte* from, Encoding encoding, std::int64_t count, Number* to) {
  switch (encoding) {
    case Encoding::f64:
      return widen_plain<double>(from, count, to);
    case Encoding::f32:
      return widen_plain<float>(from, count, to);
    case Encoding::bf16:
      return widen_plain<bf16>(from, count, to);
    case Encoding::f16:
      return widen_plain<f16>(from, count, to);
    default:
      if constexpr (std::is_same_v<Number, float>) return decode_blocks(from, encoding, count, to);
      CHOIR_CHECK(false, "{} in double precision", name_of(encoding));
  }
}

// Returns false if a number exceeds the signed range; `at` is then its index.
bool widen_wholes(const std::byte* from, Encoding encoding, std::int64_t count, std::int64_t* to,
                  std::int64_t& at) {
  switch (encoding) {
    case Encoding::i64:
      widen_plain<std::int64_t>(from, count, to);
      break;
    case Encoding::i32:
      widen_plain<std::int32_t>(from, count, to);
      break;
    case Encoding::u32:
      widen_plain<std::uint32_t>(from, count, to);
      break;
    case Encoding::i16:
      widen_plain<std::int16_t>(from, count, to);
      break;
    case Encoding::u16:
      widen_plain<std::uint16_t>(from, count, to);
      break;
    case Encoding::i8:
      widen_plain<std::int8_t>(from, count, to);
      break;
    case Encoding::u8:
      widen_plain<std::uint8_t>(from, count, to);
      break;
    case Encoding::boolean:
      for (at = 0; at < count; ++at) to[at] = from[at] != std::byte{0} ? 1 : 0;
      break;
    default:
      widen_plain<std::int64_t>(from, count, to);
      at = std::find_if(to, to + count, [](std::int64_t n) { return n < 0; }) - to;
      return at == count;
  }
  return true;
}

// --- from numbers to a file's elements; the index of the first that does not fit, else -1 ---

// Truncates a double to a float whose last bit records inexactness, so that rounding the float to
// fewer bits equals rounding the double.
float rounded_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || std::isnan(value)) return nearest;
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  if (std::abs(static_cast<double>(nearest)) > std::abs(value)) --bits;
  return std::bit_cast<float>(bits | 1u);
}
float rounded_to_odd(float value) {
  return value;
}

template <class Stored, class Number>
Stored narrowed(Number number) {
  if constexpr (std::is_same_v<Stored, bf16> || std::is_same_v<Stored, f16>)
    return Stored(rounded_to_odd(number));
  else
    return static_cast<Stored>(number);
}

template <class Stored, class Number>
bool overflows(Number number) {
  using Wide = std::conditional_t<std::is_same_v<Stored, double>, double, float>;
  return std::isinf(static_cast<Wide>(narrowed<Stored>(number))) && !std::isinf(number);
}

template <class Stored, class Number>
std::int64_t narrow_plain(const Number* from, std::int64_t count, std::byte* to) {
  bool misfit = false;
  for (std::int64_t i = 0; i < count; ++i) {
    store(to + i * static_cast<std::int64_t>(sizeof(Stored)), narrowed<Stored>(from[i]));
    misfit |= overflows<Stored>(from[i]);
  }
  return misfit ? std::find_if(from, from + count, overflows<Stored, Number>) - from : -1;
}

template <class Number>
std::int64_t narrow_reals(const Number* from, std::int64_t count, std::byte* to,
                          Encoding encoding) {
  switch (encoding) {
    case Encoding::f64:
      return narrow_plain<double>(from, count, to);
    case Encoding::f32:
      return narrow_plain<float>(from, count, to);
    case Encoding::bf16:
      return narrow_plain<bf16>(from, count, to);
    case Encoding::f16:
      return narrow_plain<f16>(from, count, to);
    default: {
      std::array<float, kEncodedPiece> numbers;
      std::transform(from, from + count, numbers.begin(),
                     [](Number number) { return static_cast<float>(number); });
      return encode_blocks(numbers.data(), count, to, encoding);
    }
  }
}

template <class Stored>
std::int64_t narrow_whole(const std::int64_t* from, std::int64_t count, std::byte* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (!std::in_range<Stored>(from[i])) return i;
    store(to + i * static_cast<std::int64_t>(sizeof(Stored)), static_cast<Stored>(from[i]));
  }
  return -1;
}

std::int64_t narrow_wholes(const std::int64_t* from, std::int64_t count, std::byte* to,
                           Encoding encoding) {
  switch (encoding) {
    case Encoding::i64:
      return narrow_whole<std::int64_t>(from, count, to);
    case Encoding::i32:
      return narrow_whole<std::int32_t>(from, count, to);
    case Encoding::u32:
      return narrow_whole<std::uint32_t>(from, count, to);
    case Encoding::i16:
      return narrow_whole<std::int16_t>(from, count, to);
    case Encoding::u16:
      return narrow_whole<std::uint16_t>(from, count, to);
    case Encoding::i8:
      return narrow_whole<std::int8_t>(from, count, to);
    case Encoding::u8:
      return narrow_whole<std::uint8_t>(from, count, to);
    case Encoding::boolean: {
      const auto* bad =
          std::find_if(from, from + count, [](std::int64_t n) { return n != 0 && n != 1; });
      if (bad != from + count) return bad - from;
      return narrow_whole<std::uint8_t>(from, count, to);
    }
    default:
      return narrow_whole<std::uint64_t>(from, count, to);
  }
}

template <class Number>
std::int64_t convert_reals(const std::byte* from, Encoding from_encoding, std::byte* to,
                           Encoding to_encoding, std::int64_t count) {
  std::array<Number, kEncodedPiece> numbers;
  widen_reals(from, from_encoding, count, numbers.data());
  return narrow_reals(numbers.data(), count, to, to_encoding);
}

std::int64_t convert_wholes(const std::byte* from, Encoding from_encoding, std::byte* to,
                            Encoding to_encoding, std::int64_t count) {
  std::array<std::int64_t, kEncodedPiece> numbers;
  std::int64_t misfit = 0;
  if (!widen_wholes(from, from_encoding, count, numbers.data(), misfit)) return misfit;
  return narrow_wholes(numbers.data(), count, to, to_encoding);
}

}  // namespace

std::string_view name_of(Encoding encoding) {
  return traits(encoding).name;
}

std::optional<Encoding> encoding_of(std::string_view name) {
  for (std::size_t i = 0; i < kTraits.size(); ++i)
    if (kTraits[i].name == name) return static_cast<Encoding>(i);
  return {};
}

Encoding encoding_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return Encoding::f64;
    case DType::f32:
      return Encoding::f32;
    case DType::bf16:
      return Encoding::bf16;
    case DType::f16:
      return Encoding::f16;
    case DType::i64:
      return Encoding::i64;
    case DType::i32:
      return Encoding::i32;
    case DType::u16:
      return Encoding::u16;
    case DType::u8:
      return Encoding::u8;
  }
  CHOIR_CHECK(false, "element type {}", static_cast<int>(dtype));
}

std::int64_t block_elements(Encoding encoding) {
  return traits(encoding).block_elements;
}

std::int64_t encoded_bytes(Encoding encoding, std::int64_t elements) {
  const Traits& t = traits(encoding);
  CHOIR_CHECK(elements % t.block_elements == 0, "{} elements of {}", elements, t.name);
  return elements / t.block_elements * t.block_bytes;
}

bool can_convert(Encoding from, Encoding to) {
  if (from == to) return true;
  const bool written = !is_quantised(to) || can_encode(to);
  return written && traits(from).meaning == traits(to).meaning &&
         traits(from).meaning != Meaning::opaque;
}

std::int64_t convert(const std::byte* from, Encoding from_encoding, std::byte* to,
                     Encoding to_encoding, std::int64_t count) {
  CHOIR_CHECK(can_convert(from_encoding, to_encoding), "{} to {}", name_of(from_encoding),
              name_of(to_encoding));
  if (from_encoding == to_encoding) {
    std::memcpy(to, from, static_cast<std::size_t>(encoded_bytes(to_encoding, count)));
    return -1;
  }
  const bool whole = traits(from_encoding).meaning == Meaning::whole;
  const auto piece = whole                            ? convert_wholes
                     : from_encoding == Encoding::f64 ? convert_reals<double>
                                                      : convert_reals<float>;
  for (std::int64_t at = 0; at < count; at += kEncodedPiece) {
    const std::int64_t misfit = piece(from + encoded_bytes(from_encoding, at), from_encoding,
                                      to + encoded_bytes(to_encoding, at), to_encoding,
                                      std::min(kEncodedPiece, count - at));
    if (misfit >= 0) return at + misfit;
  }
  return -1;
}

}  // namespace choir
