#pragma once
// Encodings of elements in weight files. Other programs write more types than choir computes with
// (DType). Reals convert to reals and integers to integers; there are no other conversions.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "choir/core/dtype.hpp"

namespace choir {

/// The types of safetensors in its order, narrowest first, then the quantised blocks of GGUF.
enum class Encoding : std::uint8_t {
  boolean,
  f4,
  f6_e2m3,
  f6_e3m2,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64,
  q8_0,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  iq4_nl,
  iq4_xs
};

/// "BF16", "Q8_0": the names in safetensors and GGUF.
std::string_view name_of(Encoding encoding);
/// std::nullopt for an unknown name.
std::optional<Encoding> encoding_of(std::string_view name);
Encoding encoding_of(DType dtype);

/// The number of elements in a block; 1 except for quantised and sub-byte types.
std::int64_t block_elements(Encoding encoding);
/// The size of `elements` elements in bytes; they must be whole blocks.
std::int64_t encoded_bytes(Encoding encoding, std::int64_t elements);

/// True if elements can be converted: between equal types, among reals, and among integers
/// (including booleans). Of the quantised types only those of can_encode() can be written; 8-bit
/// floats and complex numbers can only be listed.
bool can_convert(Encoding from, Encoding to);

/// Converts `count` elements, which must be whole blocks of both types. Rounds once, to nearest
/// even, also from doubles, except into quantised types (see encode_blocks()). Returns the index of
/// the first element that the target cannot hold (a finite number beyond its range; for quantised
/// types also one that is not finite), or -1. Memory need not be aligned.
std::int64_t convert(const std::byte* from, Encoding from_encoding, std::byte* to,
                     Encoding to_encoding, std::int64_t count);

}  // namespace choir
