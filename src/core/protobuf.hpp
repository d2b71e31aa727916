#pragma once
// Encoder of protocol buffers without a library: fields are appended to a message in the order of
// the calls. https://protobuf.dev/programming-guides/encoding
//
// With it, the records of TensorBoard: a file is a sequence of records in TensorFlow's record
// format: length (8 bytes, little-endian), masked CRC-32C of the length, payload, masked CRC-32C of
// the payload. A payload is an Event in protocol buffer encoding. Source:
// tensorflow/core/lib/io/record_writer.h, core/util/event.proto, core/framework/summary.proto.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace choir::protobuf {

/// Little-endian bytes of a word; also used for the framing of messages in files.
template <class Word>
void put_little_endian(std::string& out, Word word) {
  for (std::size_t byte = 0; byte < sizeof word; ++byte)
    out += static_cast<char>(word >> (8 * byte) & 0xff);
}

void put_integer(std::string& out, unsigned field, std::uint64_t value);
/// A text, or a message.
void put_bytes(std::string& out, unsigned field, std::string_view bytes);
void put_double(std::string& out, unsigned field, double value);
void put_float(std::string& out, unsigned field, float value);

}  // namespace choir::protobuf

namespace choir::tensorboard {

/// The record with this payload.
std::string record(std::string_view payload);

/// The first event of every file; `wall_time` in seconds since 1970.
std::string version_event(double wall_time);
/// An event after which events from `step` on replace earlier ones, because a resumed run repeats
/// them.
std::string start_event(double wall_time, std::int64_t step);
/// An event with tags and their values.
std::string scalars_event(double wall_time, std::int64_t step,
                          std::span<const std::pair<std::string, double>> scalars);

}  // namespace choir::tensorboard
