#include "src/data/codes/code_layout.hpp"

#include <cstring>

#include "choir/core/error.hpp"

namespace choir {

std::string fault_of(const CodecDescription& codec) {
  const auto outside = [](std::int64_t value, std::int64_t most) {
    return value < 1 || value > most;
  };
  if (outside(codec.codebooks, kMostCodebooks) ||
      outside(codec.codes_per_book, kMostCodesPerBook) ||
      outside(codec.frame_samples, kMostFrameSamples) || outside(codec.sample_rate, kMostCodecRate))
    return fmt::format(
        "have impossible numbers: {} books of {} codes, frames of {} samples at {} "
        "hertz",
        codec.codebooks, codec.codes_per_book, codec.frame_samples, codec.sample_rate);
  if (std::ssize(codec.silence) != codec.codebooks)
    return fmt::format("have {} codes of silence for {} books", codec.silence.size(),
                       codec.codebooks);
  for (const std::uint16_t code : codec.silence)
    if (code >= codec.codes_per_book)
      return fmt::format("have {} as a code of silence, but only {} codes in a book", code,
                         codec.codes_per_book);
  return "";
}

CodeHeader code_header(const AudioCatalog& catalog, const CodecDescription& codec) {
  CodeHeader header;
  header.catalog_hash = catalog.hash();
  header.codec_hash = codec.hash;
  header.recordings = static_cast<std::uint64_t>(catalog.size());
  for (std::int64_t i = 0; i < catalog.size(); ++i)
    header.frames += static_cast<std::uint64_t>(codec.frames_of(catalog[i].samples));
  header.sample_rate = static_cast<std::uint32_t>(codec.sample_rate);
  header.frame_samples = static_cast<std::uint32_t>(codec.frame_samples);
  header.codebooks = static_cast<std::uint32_t>(codec.codebooks);
  header.codes_per_book = static_cast<std::uint32_t>(codec.codes_per_book);
  return header;
}

std::string code_index(const CodecDescription& codec, const std::vector<CodeRecord>& records) {
  const std::size_t silence = (2 * codec.silence.size() + 7) / 8 * 8;
  std::string bytes(silence + records.size() * sizeof(CodeRecord), '\0');
  std::memcpy(bytes.data(), codec.silence.data(), 2 * codec.silence.size());
  if (!records.empty())
    std::memcpy(bytes.data() + silence, records.data(), records.size() * sizeof(CodeRecord));
  return bytes;
}

}  // namespace choir
