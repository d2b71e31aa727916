#include "src/data/dialogues/code_file.hpp"

#include <algorithm>
#include <bit>
#include <cctype>
#include <cstring>
#include <filesystem>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"

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

namespace {

static_assert(std::endian::native == std::endian::little, "code files are little-endian");

[[noreturn]] void refuse_codes(const std::string& path, const std::string& what) {
  throw DataError(fmt::format("codes '{}' {}", path, what),
                  "write them again with 'choir prepare codes'");
}

/// Reads and checks the header, and that the file has the length that it specifies.
CodeHeader checked_header(const PosixFile& file) {
  const std::string& path = file.path();
  const std::int64_t size = file.size();
  CodeHeader header;
  if (size < static_cast<std::int64_t>(sizeof header))
    refuse_codes(path, fmt::format("are truncated: {} bytes, but the header alone has {}", size,
                                   sizeof header));
  file.read_at(&header, sizeof header, 0);
  if (header.magic != CodeHeader::kMagic)
    refuse_codes(path, "are not a file of codes (no CHOIRCDS at the start)");
  if (header.endianness != CodeHeader::kEndiannessMark)
    refuse_codes(path, "were written on a machine of the other byte order");
  if (header.version != CodeHeader::kVersion)
    refuse_codes(path, fmt::format("have version {}, but this program reads {}", header.version,
                                   CodeHeader::kVersion));
  if (header.checksum() != header.header_crc)
    refuse_codes(path, fmt::format("have a corrupt header (crc32c {:08x}, stored {:08x})",
                                   header.checksum(), header.header_crc));
  const bool possible = header.codebooks >= 1 && header.codebooks <= kMostCodebooks &&
                        header.recordings <= static_cast<std::uint64_t>(kMostRecordings) &&
                        header.frames <= static_cast<std::uint64_t>(kMostFrames);
  if (!possible || header.bytes() != size)
    refuse_codes(path, fmt::format("are truncated or too long: {} bytes for {} recordings of {} "
                                   "frames with {} codes each",
                                   size, header.recordings, header.frames, header.codebooks));
  return header;
}

void check_catalog(const CodeHeader& header, const AudioCatalog& catalog, const std::string& path) {
  if (header.recordings != static_cast<std::uint64_t>(catalog.size()))
    refuse_codes(path, fmt::format("are of {} recordings, but the audio beside them has {}",
                                   header.recordings, catalog.size()));
  if (header.catalog_hash != catalog.hash())
    refuse_codes(path, "belong to another state of the packed audio beside them");
  if (header.sample_rate != static_cast<std::uint32_t>(catalog.sample_rate()))
    refuse_codes(path, fmt::format("are of audio of {} hertz, but that beside them has {}",
                                   header.sample_rate, catalog.sample_rate()));
}

}  // namespace

struct CodeFile::State {
  PosixFile file;
  CodecDescription codec;
  std::vector<CodeRecord> records;
  std::vector<std::int64_t> first;  ///< first frame over all recordings; [recordings + 1]
  std::int64_t codes_at = 0;        ///< position in bytes
};

std::string CodeFile::path(const std::string& folder, const std::string& name) {
  const bool legal = !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
  if (!legal)
    throw DeckError(fmt::format("'{}' is not a valid name of codes", name),
                    "use letters, digits, '_' and '-', such as 'codec' or 'fsq_4'");
  return fmt::format("{}/codes.{}.bin", folder, name);
}

CodeFile CodeFile::open(const AudioCatalog& catalog, const std::string& name) {
  const std::string source = path(catalog.folder(), name);
  if (!std::filesystem::exists(source))
    throw DataError(fmt::format("codes not found: '{}'", source),
                    fmt::format("write them with 'choir prepare codes CODEC_RUN {} --name {}'",
                                catalog.folder(), name));
  State state{PosixFile::for_reading(source), {}, {}, {}, 0};
  const CodeHeader header = checked_header(state.file);
  check_catalog(header, catalog, source);
  std::string index(static_cast<std::size_t>(header.codes_at()) - sizeof header, '\0');
  state.file.read_at(index.data(), index.size(), sizeof header);
  if (const std::uint32_t crc = crc32c(index.data(), index.size()); crc != header.index_crc)
    refuse_codes(source, fmt::format("have a corrupt index (crc32c {:08x}, stored {:08x})", crc,
                                     header.index_crc));
  CodecDescription& codec = state.codec;
  codec = {header.codec_hash,     static_cast<int>(header.sample_rate),
           header.frame_samples,  header.codebooks,
           header.codes_per_book, {}};
  codec.silence.resize(header.codebooks);
  std::memcpy(codec.silence.data(), index.data(), codec.silence.size() * 2);
  if (const std::string fault = fault_of(codec); !fault.empty()) refuse_codes(source, fault);
  state.records.resize(header.recordings);
  if (!state.records.empty())
    std::memcpy(state.records.data(), index.data() + header.silence_bytes(),
                state.records.size() * sizeof(CodeRecord));
  state.first.push_back(0);
  for (std::int64_t i = 0; i < catalog.size(); ++i) {
    const std::int64_t frames = state.records[static_cast<std::size_t>(i)].frames;
    if (frames != codec.frames_of(catalog[i].samples))
      refuse_codes(source, fmt::format("have {} frames of {} samples for recording {}, which has "
                                       "{} samples",
                                       frames, codec.frame_samples, i, catalog[i].samples));
    state.first.push_back(state.first.back() + frames);
  }
  if (state.first.back() != static_cast<std::int64_t>(header.frames))
    refuse_codes(source, "have numbers of frames that do not match their sum");
  state.codes_at = header.codes_at();
  return CodeFile(std::make_shared<const State>(std::move(state)));
}

void CodeFile::require(const CodecDescription& wanted) const {
  const CodecDescription& there = codec();
  const auto differ = [&](const char* what, auto has, auto wants) {
    if (has != wants)
      refuse_codes(path(), fmt::format("are of another codec: {} {}, not {}", what, has, wants));
  };
  differ("with codebooks:", there.codebooks, wanted.codebooks);
  differ("with codes in each book:", there.codes_per_book, wanted.codes_per_book);
  differ("with samples in a frame:", there.frame_samples, wanted.frame_samples);
  differ("at hertz:", there.sample_rate, wanted.sample_rate);
  differ("of hash", fmt::format("{:016x}", there.hash), fmt::format("{:016x}", wanted.hash));
  if (there.silence != wanted.silence)
    refuse_codes(path(), "are of another codec: its codes of silence differ");
}

const CodecDescription& CodeFile::codec() const {
  return state_->codec;
}
std::int64_t CodeFile::size() const {
  return std::ssize(state_->records);
}
std::int64_t CodeFile::frames(std::int64_t recording) const {
  CHOIR_CHECK(recording >= 0 && recording < size(), "recording {} of {}", recording, size());
  return state_->records[static_cast<std::size_t>(recording)].frames;
}
std::int64_t CodeFile::frames() const {
  return state_->first.back();
}
const std::string& CodeFile::path() const {
  return state_->file.path();
}

std::vector<std::uint16_t> CodeFile::read(std::int64_t recording, std::int64_t first,
                                          std::int64_t count) const {
  const std::int64_t all = frames(recording), books = codec().codebooks;
  CHOIR_CHECK(first >= 0 && count >= 0 && first <= all && count <= all - first,
              "frames {} ... {} of recording {}, which has {}", first, first + count, recording,
              all);
  const auto at = static_cast<std::size_t>(recording);
  std::vector<std::uint16_t> codes(static_cast<std::size_t>(all * books));
  state_->file.read_at(codes.data(), codes.size() * 2,
                       state_->codes_at + 2 * state_->first[at] * books);
  const std::uint32_t crc = crc32c(codes.data(), codes.size() * 2);
  if (crc != state_->records[at].crc)
    refuse_codes(path(), fmt::format("are damaged in recording {} (crc32c {:08x}, stored {:08x})",
                                     recording, crc, state_->records[at].crc));
  const auto beyond = std::find_if(codes.begin(), codes.end(), [&](std::uint16_t code) {
    return code >= codec().codes_per_book;
  });
  if (beyond != codes.end())
    refuse_codes(path(), fmt::format("have code {} in recording {}, but only {} codes in a book",
                                     *beyond, recording, codec().codes_per_book));
  codes.resize(static_cast<std::size_t>((first + count) * books));
  codes.erase(codes.begin(), codes.begin() + first * books);
  return codes;
}

}  // namespace choir
