#include "src/core/protobuf.hpp"

#include <bit>

#include "src/core/hash.hpp"

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

namespace choir::tensorboard {
namespace {

using namespace protobuf;

std::uint32_t masked_crc(std::string_view bytes) {
  constexpr std::uint32_t kMask = 0xa282ead8;
  return std::rotr(crc32c(bytes.data(), bytes.size()), 15) + kMask;
}

/// An Event: wall_time = 1 (double), step = 2 (int64, omitted if 0).
std::string event(double wall_time, std::int64_t step) {
  std::string out;
  put_double(out, 1, wall_time);
  if (step != 0) put_integer(out, 2, static_cast<std::uint64_t>(step));
  return out;
}

}  // namespace

std::string record(std::string_view payload) {
  std::string out;
  put_little_endian(out, static_cast<std::uint64_t>(payload.size()));
  put_little_endian(out, masked_crc(out));
  out += payload;
  put_little_endian(out, masked_crc(payload));
  return out;
}

std::string version_event(double wall_time) {
  std::string out = event(wall_time, 0);
  put_bytes(out, 3, "brain.Event:2");  // file_version
  return out;
}

std::string start_event(double wall_time, std::int64_t step) {
  std::string session;  // SessionLog: status = 1 (START = 1)
  put_integer(session, 1, 1);
  std::string out = event(wall_time, step);
  put_bytes(out, 7, session);
  return out;
}

std::string scalars_event(double wall_time, std::int64_t step,
                          std::span<const std::pair<std::string, double>> scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;  // Summary.Value: tag = 1, simple_value = 2 (float)
    put_bytes(value, 1, tag);
    put_float(value, 2, static_cast<float>(number));
    put_bytes(summary, 1, value);
  }
  std::string out = event(wall_time, step);
  put_bytes(out, 5, summary);
  return out;
}

}  // namespace choir::tensorboard
