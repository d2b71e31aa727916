#pragma once
// How elements are encoded in weight files: what other programs write is more than what choir
// computes with (DType). Reals become reals and whole numbers whole numbers; nothing else converts.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "choir/core/dtype.hpp"

namespace choir {

/// In the order of safetensors, narrowest first, and then the blocks of 32 of GGUF.
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
  q4_1
};

/// "BF16", "Q8_0": as safetensors and GGUF call them.
std::string_view name_of(Encoding encoding);
/// Nothing for a name that is unknown.
std::optional<Encoding> encoding_of(std::string_view name);
Encoding encoding_of(DType dtype);

/// Elements are stored in blocks of this many; 1 but for quantised and sub-byte types.
std::int64_t block_elements(Encoding encoding);
/// The bytes of `elements`, which must be whole blocks.
std::int64_t encoded_bytes(Encoding encoding, std::int64_t elements);

/// Whether elements can be converted: always to themselves, and among reals or among whole numbers
/// (a boolean is one of them). Q4_0 and Q4_1 are read only, 8-bit floats and complex numbers are
/// only listed.
bool can_convert(Encoding from, Encoding to);

/// Rounds to nearest even, from doubles too: once. Q8_0 as GGML does it. Returns the first element
/// that the target cannot hold: a finite number beyond its range, and in Q8_0 one that is not
/// finite; -1 when all fit. `count` is whole blocks of both. Memory need not be aligned.
std::int64_t convert(const std::byte* from, Encoding from_encoding, std::byte* to,
                     Encoding to_encoding, std::int64_t count);

}  // namespace choir
