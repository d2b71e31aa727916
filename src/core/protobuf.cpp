#include "src/core/protobuf.hpp"

#include <bit>

namespace choir::protobuf {
namespace {

enum class Wire : unsigned { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void put_key(std::string& out, unsigned field, Wire wire) {
  put_varint(out, field << 3 | static_cast<unsigned>(wire));
}

}  // namespace

void put_integer(std::string& out, unsigned field, std::uint64_t value) {
  put_key(out, field, Wire::varint);
  put_varint(out, value);
}

void put_bytes(std::string& out, unsigned field, std::string_view bytes) {
  put_key(out, field, Wire::bytes);
  put_varint(out, bytes.size());
  out += bytes;
}

void put_double(std::string& out, unsigned field, double value) {
  put_key(out, field, Wire::fixed64);
  put_little_endian(out, std::bit_cast<std::uint64_t>(value));
}

void put_float(std::string& out, unsigned field, float value) {
  put_key(out, field, Wire::fixed32);
  put_little_endian(out, std::bit_cast<std::uint32_t>(value));
}

}  // namespace choir::protobuf
