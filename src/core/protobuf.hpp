#pragma once
// Encoder of protocol buffers without a library: fields are appended to a message in the order of
// the calls. https://protobuf.dev/programming-guides/encoding
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

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
