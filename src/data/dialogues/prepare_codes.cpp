#include "src/data/dialogues/prepare_codes.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "choir/core/error.hpp"
#include "choir/core/log.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/file.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/data/audio/packed_audio.hpp"
#include "src/data/dialogues/code_file.hpp"

namespace choir {
namespace {

/// The share of a rank: recordings [first, last), and the frames before them.
struct Share {
  std::int64_t first = 0, last = 0, frames_before = 0, frames = 0;
};

/// Shares are contiguous, so that the codes of a rank are one stretch of the file.
Share share_of_rank(const AudioCatalog& catalog, const CodecDescription& codec, int rank,
                    int ranks) {
  const auto all = static_cast<std::int64_t>(code_header(catalog, codec).frames);
  Share share;
  std::int64_t before = 0;
  for (std::int64_t i = 0; i < catalog.size(); ++i) {
    const std::int64_t frames = codec.frames_of(catalog[i].samples);
    if (before >= all * rank / ranks && before < all * (rank + 1) / ranks) {
      if (share.last == 0) share.first = i, share.frames_before = before;
      share.last = i + 1;
      share.frames += frames;
    }
    before += frames;
  }
  return share;
}

/// Number of uses of every code of every book: [K, N].
using CodeCounts = std::vector<std::int64_t>;

class ShareEncoder {
 public:
  ShareEncoder(const AudioCatalog& catalog, const CodecDescription& codec, const Share& share)
      : catalog_(catalog),
        codec_(codec),
        share_(share),
        counts_(static_cast<std::size_t>(codec.codebooks * codec.codes_per_book)) {}

  void run(const std::string& path, const CodeMaker& make, ProgressLine& progress) {
    const CodeHeader header = code_header(catalog_, codec_);
    PosixFile file = PosixFile::for_updating(path);
    std::int64_t frame = share_.frames_before;
    for (std::int64_t i = share_.first; i < share_.last; ++i) {
      const std::vector<std::uint16_t> codes = make(read_packed_audio(catalog_, i));
      count(codes, i);
      records_.push_back({static_cast<std::uint32_t>(codec_.frames_of(catalog_[i].samples)),
                          crc32c(codes.data(), codes.size() * 2)});
      file.write_at(codes.data(), codes.size() * 2,
                    header.codes_at() + frame * header.frame_bytes());
      frame += records_.back().frames;
      progress.at(frame - share_.frames_before, share_.frames);
    }
    file.sync();
  }

  std::string records() const {
    return {reinterpret_cast<const char*>(records_.data()), records_.size() * sizeof(CodeRecord)};
  }
  CodeCounts& counts() { return counts_; }

 private:
  void count(const std::vector<std::uint16_t>& codes, std::int64_t recording) {
    const std::int64_t frames = codec_.frames_of(catalog_[recording].samples);
    CHOIR_CHECK(std::ssize(codes) == frames * codec_.codebooks,
                "{} codes for {} frames of {} codebooks", codes.size(), frames, codec_.codebooks);
    for (std::size_t i = 0; i < codes.size(); ++i) {
      CHOIR_CHECK(codes[i] < codec_.codes_per_book, "code {} of {}", codes[i],
                  codec_.codes_per_book);
      const auto book = static_cast<std::int64_t>(i) % codec_.codebooks;
      ++counts_[static_cast<std::size_t>(book * codec_.codes_per_book + codes[i])];
    }
  }

  const AudioCatalog& catalog_;
  const CodecDescription& codec_;
  Share share_;
  std::vector<CodeRecord> records_;
  CodeCounts counts_;
};

/// Writes header and index last: the temporary file is not a valid file of codes before.
void finish_codes(const std::string& temporary, const std::string& path,
                  const AudioCatalog& catalog, const CodecDescription& codec,
                  const std::vector<std::string>& parts) {
  std::vector<CodeRecord> records(static_cast<std::size_t>(catalog.size()));
  const std::string bytes = join(parts, "");
  CHOIR_CHECK(bytes.size() == records.size() * sizeof(CodeRecord), "{} bytes of {} records",
              bytes.size(), records.size());
  if (!records.empty()) std::memcpy(records.data(), bytes.data(), bytes.size());
  const std::string index = code_index(codec, records);
  CodeHeader header = code_header(catalog, codec);
  header.index_crc = crc32c(index.data(), index.size());
  header.header_crc = header.checksum();
  {
    PosixFile file = PosixFile::for_updating(temporary);
    file.write_at(index.data(), index.size(), sizeof header);
    file.write_at(&header, sizeof header, 0);
    file.sync();
  }
  rename_file(temporary, path);
  sync_directory(std::filesystem::path(path).parent_path());
}

void describe_use(const CodeCounts& counts, PrepareCodesSummary& summary) {
  const auto books = static_cast<double>(summary.codec.codebooks);
  const auto frames = static_cast<double>(std::max<std::int64_t>(summary.frames, 1));
  for (const std::int64_t n : counts) {
    if (n == 0) continue;
    ++summary.used;
    const double share = static_cast<double>(n) / frames;
    summary.entropy -= share * std::log2(share) / books;
  }
}

/// Rank 0 reads the catalog and broadcasts it.
AudioCatalog catalog_of(Communicator& world, const std::string& folder) {
  AudioCatalog catalog;
  std::string bytes;
  together(world, [&] {
    if (world.rank() != 0) return;
    catalog = AudioCatalog::open(folder);
    bytes = catalog.serialise();
  });
  broadcast_text(world, bytes);
  if (world.rank() != 0) catalog = AudioCatalog::deserialise(bytes);
  return catalog;
}

/// True if the file is complete and belongs to this codec and the current audio.
bool written_before(const AudioCatalog& catalog, const std::string& name,
                    const CodecDescription& codec) {
  if (!std::filesystem::exists(CodeFile::path(catalog.folder(), name))) return false;
  try {
    CodeFile::open(catalog, name).require(codec);
    return true;
  } catch (const DataError&) {
    return false;
  }
}

}  // namespace

PrepareCodesSummary prepare_codes(Communicator& world, Logger& log, const std::string& folder,
                                  const std::string& name, const CodecDescription& codec,
                                  const CodeMaker& make) {
  const double began = now_seconds();
  CHOIR_CHECK(fault_of(codec).empty(), "a codec whose codes {}", fault_of(codec));
  const AudioCatalog catalog = catalog_of(world, folder);
  PrepareCodesSummary summary;
  summary.codec = codec;
  summary.recordings = catalog.size();
  summary.frames = static_cast<std::int64_t>(code_header(catalog, codec).frames);
  summary.audio_seconds = 3600 * catalog.hours();
  std::string temporary;
  int there = 0;
  together(world, [&] {
    summary.path = CodeFile::path(folder, name);
    temporary = summary.path + ".tmp";
    if (catalog.sample_rate() != codec.sample_rate)
      throw DataError(
          fmt::format("'{}' is packed at {} hertz, but the codec needs {}", folder,
                      catalog.sample_rate(), codec.sample_rate),
          fmt::format("pack it with 'choir prepare audio --sample-rate {}'", codec.sample_rate));
    if (world.rank() != 0) return;
    there = written_before(catalog, name, codec) ? 1 : 0;
    if (there == 0) PosixFile::for_writing(temporary).sync();
  });
  world.broadcast(&there, sizeof there, 0);
  summary.there_before = there != 0;
  if (summary.there_before) return summary;
  ShareEncoder share(catalog, codec, share_of_rank(catalog, codec, world.rank(), world.size()));
  ProgressLine progress(log, "encoding speech", 5);
  try {
    together(world, [&] { share.run(temporary, make, progress); });
    const std::vector<std::string> parts = gather_texts(world, share.records());
    together(world, [&] {
      if (world.rank() == 0) finish_codes(temporary, summary.path, catalog, codec, parts);
    });
  } catch (...) {
    std::error_code ignored;
    if (world.rank() == 0) std::filesystem::remove(temporary, ignored);
    throw;
  }
  world.all_reduce(share.counts().data(), share.counts().size(), DType::i64, ReduceOp::sum);
  describe_use(share.counts(), summary);
  summary.seconds = now_seconds() - began;
  return summary;
}

std::string PrepareCodesSummary::to_string() const {
  const std::string head = fmt::format(
      "codes       {}, {} of {}, {} of {} samples", path, counted(recordings, "recording"),
      format_duration(audio_seconds), counted(frames, "frame"), codec.frame_samples);
  if (there_before) return head + "\n            already written, by the same codec";
  const auto all = static_cast<double>(codec.codebooks * codec.codes_per_book);
  return fmt::format(
      "{}\n            {} x {} codes, {:.1f} % of them used, {:.2f} bits each of {:.2f}; codec "
      "{:016x}\n            written in {}, {:.0f} x real time",
      head, codec.codebooks, codec.codes_per_book, 100 * static_cast<double>(used) / all, entropy,
      std::log2(static_cast<double>(codec.codes_per_book)), codec.hash, format_duration(seconds),
      seconds > 0 ? audio_seconds / seconds : 0.0);
}

}  // namespace choir
