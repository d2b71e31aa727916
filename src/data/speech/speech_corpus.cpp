#include "src/data/speech/speech_corpus.hpp"

#include <filesystem>
#include <limits>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/file.hpp"
#include "src/core/hash.hpp"
#include "src/core/json_value.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/data/audio/packed_audio.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

}  // namespace

std::string_view name_of(LeftOut reason) {
  switch (reason) {
    case LeftOut::too_short:
      return "shorter than data.min_duration or a frame";
    case LeftOut::too_long:
      return "longer than data.max_duration";
    case LeftOut::few_labels:
      return "fewer labels a second than data.min_labels_per_second";
    case LeftOut::many_labels:
      return "more labels a second than data.max_labels_per_second";
    case LeftOut::damaged:
      return "damaged: the samples do not match their checksum";
    case LeftOut::bad_text:
      return "text with characters outside the vocabulary";
    case LeftOut::ctc_impossible:
      return "CTC is impossible: fewer frames than the labels need";
  }
  return "?";
}

SpeechSift::SpeechSift(const SpeechFilter& filter, const SpeechFrames& frames, bool validation)
    : filter_(filter), frames_(frames), validation_(validation) {}

void SpeechSift::leave_out(LeftOut reason, const AudioCatalog& catalog, std::int64_t i,
                           const std::string& detail) {
  Count& count = counts_[static_cast<std::size_t>(reason)];
  constexpr std::size_t kNamedUtterances = 3;
  ++count.utterances;
  if (count.first.size() < kNamedUtterances)
    count.first.push_back(fmt::format("utterance {} of '{}'{}", i, catalog.folder(), detail));
  count.seconds += static_cast<double>(catalog[i].samples) / catalog.sample_rate();
}

bool SpeechSift::judge(const AudioCatalog& catalog, const LabelFile& labels, std::int64_t i,
                       bool damaged) {
  const std::int64_t samples = catalog[i].samples;
  const double seconds = static_cast<double>(samples) / catalog.sample_rate();
  const auto out = [&](LeftOut reason, const std::string& detail = {}) {
    leave_out(reason, catalog, i, detail);
    return false;
  };
  // The words of a validation text count as errors even if the recording has no frame for them.
  const bool compared = validation_ && filter_.ctc && (labels.bad(i) || !labels[i].empty());
  if (seconds < filter_.min_duration || (frames_.frames(samples) == 0 && !compared))
    return out(LeftOut::too_short, fmt::format(", {:.3f} s", seconds));
  const bool countable = samples <= std::numeric_limits<std::int32_t>::max();  // lengths are i32
  if (!countable || (filter_.max_duration > 0 && seconds > filter_.max_duration))
    return out(LeftOut::too_long, fmt::format(", {:.2f} s", seconds));
  if (damaged) return out(LeftOut::damaged);
  if (labels.bad(i)) {
    leave_out(LeftOut::bad_text, catalog, i);
    return keeps(LeftOut::bad_text);
  }
  const auto ids = labels[i];
  const double rate = static_cast<double>(ids.size()) / seconds;
  if (rate < filter_.min_labels_per_second)
    return out(LeftOut::few_labels, fmt::format(", {:.2f} a second", rate));
  if (filter_.max_labels_per_second > 0 && rate > filter_.max_labels_per_second)
    return out(LeftOut::many_labels, fmt::format(", {:.2f} a second", rate));
  if (!filter_.ctc) return true;
  const std::int64_t needed = ctc_frames(ids);
  for (int stages = 1; stages < std::ssize(impossible_); ++stages)
    impossible_[static_cast<std::size_t>(stages)] += needed > frames_.after(stages, samples);
  if (needed <= frames_.frames(samples)) return true;
  leave_out(LeftOut::ctc_impossible, catalog, i,
            fmt::format(", {:.2f} s: {} labels with {} repeats, {} frames", seconds, ids.size(),
                        needed - std::ssize(ids), frames_.frames(samples)));
  return keeps(LeftOut::ctc_impossible);
}

bool SpeechSift::keeps(LeftOut reason) const {
  return validation_ && (reason == LeftOut::bad_text || reason == LeftOut::ctc_impossible);
}

bool SpeechSift::is_bad(LeftOut reason) const {
  return !keeps(reason) && (reason == LeftOut::damaged || reason == LeftOut::bad_text ||
                            reason == LeftOut::ctc_impossible);
}

void SpeechSift::add(int leaf, const AudioCatalog& catalog, const LabelFile& labels,
                     std::span<const std::int32_t> damaged, std::vector<SpeechItem>& kept) {
  CHOIR_CHECK(
      labels.size() == catalog.size() && (damaged.empty() || std::ssize(damaged) == labels.size()),
      "{} labels of {} utterances", labels.size(), catalog.size());
  for (std::int64_t i = 0; i < catalog.size(); ++i) {
    ++total_;
    const bool broken = !damaged.empty() && damaged[static_cast<std::size_t>(i)] != 0;
    if (!judge(catalog, labels, i, broken)) continue;
    ++kept_;
    seconds_ += static_cast<double>(catalog[i].samples) / catalog.sample_rate();
    kept.push_back({leaf, static_cast<std::int32_t>(i),
                    static_cast<std::int32_t>(catalog[i].samples),
                    static_cast<std::int32_t>(labels[i].size())});
  }
}

std::int64_t SpeechSift::bad() const {
  std::int64_t sum = 0;
  for (const LeftOut reason : kLeftOutReasons)
    if (is_bad(reason)) sum += count(reason);
  return sum;
}

std::string SpeechSift::bad_ones() const {
  std::string text;
  for (const LeftOut reason : kLeftOutReasons) {
    if (!is_bad(reason) || count(reason) == 0) continue;
    text +=
        fmt::format("{}{} {} (first: {})", text.empty() ? "" : "; ", count(reason), name_of(reason),
                    join(counts_[static_cast<std::size_t>(reason)].first, "; "));
  }
  return text;
}

std::string SpeechSift::ctc_remedy() const {
  if (count(LeftOut::ctc_impossible) == 0) return {};
  std::string text = fmt::format(
      "CTC needs a frame for each label, and model.subsampling={0} keeps one frame of {0}",
      1 << frames_.stages);
  for (int stages = frames_.stages - 1; stages >= 1; --stages)
    text += fmt::format("{} {} with model.subsampling={}",
                        stages == frames_.stages - 1 ? "; too few are left for" : ",",
                        format_count(impossible_[static_cast<std::size_t>(stages)]), 1 << stages);
  return text +
         "; larger units (data.labels=bpe_256) need fewer frames, and longer recordings have more";
}

void SpeechSift::require(OnBad on_bad, double cap, const std::string& what) const {
  if (kept_ == 0)
    throw DataError(fmt::format("none of the {} of {} is left:\n{}", counted(total_, "utterance"),
                                what, to_string()),
                    "loosen the filters, or prepare other data");
  const std::int64_t b = bad();
  if (b == 0) return;
  const double share = static_cast<double>(b) / static_cast<double>(total_);
  if (on_bad == OnBad::skip && share <= cap) return;
  const std::string remedy = ctc_remedy();
  const std::string hint =
      (remedy.empty() ? "" : remedy + "; ") +
      (on_bad == OnBad::stop
           ? fmt::format("data.on_bad=skip leaves out up to {:g} % of the utterances", 100 * cap)
           : "repair the data, leave such utterances out of it, or raise data.bad_cap");
  throw DataError(fmt::format("{} of the {} utterances of {} are bad{}: {}", format_count(b),
                              format_count(total_), what,
                              on_bad == OnBad::skip ? fmt::format(", {:.2f} %, more than {:g} %",
                                                                  100 * share, 100 * cap)
                                                    : "",
                              bad_ones()),
                  hint);
}

std::string SpeechSift::line_of(LeftOut reason) const {
  const Count& c = counts_[static_cast<std::size_t>(reason)];
  if (c.utterances == 0) return {};
  return fmt::format("{} {} ({:.2f} hours): {}; first {}", keeps(reason) ? "counted" : "left out",
                     format_count(c.utterances), c.seconds / 3600, name_of(reason),
                     join(c.first, "; "));
}

std::string SpeechSift::to_string() const {
  std::string text = fmt::format("{} of {}, {:.2f} hours", format_count(kept_),
                                 counted(total_, "utterance"), hours());
  for (const LeftOut reason : kLeftOutReasons)
    if (const std::string line = line_of(reason); !line.empty()) text += "\n" + line;
  if (const std::string remedy = ctc_remedy(); !remedy.empty()) text += "\n" + remedy;
  return text;
}

namespace {

constexpr std::int64_t kSampleBytes = 2;

void share(Communicator& comm, std::string& bytes) {
  std::uint64_t length = bytes.size();
  comm.broadcast(&length, sizeof length, 0);
  bytes.resize(length);
  comm.broadcast(bytes.data(), length, 0);
}

std::string to_bytes(const nlohmann::json& value) {
  const auto bytes = nlohmann::json::to_cbor(value);
  return {bytes.begin(), bytes.end()};
}

// Returns the lengths of the shards of a folder and checks that every utterance lies inside its
// shard.
nlohmann::json shards_of(const AudioCatalog& catalog) {
  auto shards = nlohmann::json::array();
  std::vector<std::int64_t> samples;
  for (int s = 0; s < catalog.shards(); ++s) {
    const AudioShardHeader header = read_audio_shard_header(catalog.shard_path(s));
    if (header.sample_rate != catalog.sample_rate())
      throw DataError(fmt::format("'{}' has {} Hz, its folder {} Hz", catalog.shard_path(s),
                                  header.sample_rate, catalog.sample_rate()),
                      "shards of two folders were mixed; prepare the audio again");
    samples.push_back(header.samples);
    shards.push_back(header.samples);
  }
  for (std::int64_t i = 0; i < catalog.size(); ++i) {
    const auto& u = catalog[i];
    if (u.first + u.samples <= samples[static_cast<std::size_t>(u.shard)]) continue;
    throw DataError(fmt::format("utterance {} of '{}' ends past the end of '{}'", i,
                                catalog.folder(), catalog.shard_path(u.shard)),
                    "the shard does not belong to the index; prepare the audio again");
  }
  return shards;
}

LabelFile labels_of(const AudioCatalog& catalog, const SpeechCorpusOptions& options) {
  if (options.labels.empty()) return LabelFile::none(catalog.size());
  const std::string& folder = catalog.folder();
  if (options.make_labels) {
    for (const std::string& name : {options.own_labels, options.labels})
      if (auto found = LabelFile::find(folder, name, catalog.hash(), options.tokenizer_hash))
        return std::move(*found);
    return options.make_labels(catalog, options.validation);
  }
  const bool own =
      !options.own_labels.empty() && fs::exists(LabelFile::path(folder, options.own_labels));
  const std::string& name = own ? options.own_labels : options.labels;
  if (options.validation && !fs::exists(LabelFile::path(folder, name)))
    throw DataError(
        fmt::format("{}: '{}' has no labels of the name {}", options.what, folder, name),
        fmt::format("write them with `choir prepare tokens {} --tokenizer FILE --name "
                    "{}`, or leave out the sets of the deck: 'data.validation={{}}'",
                    folder, name));
  return LabelFile::open(folder, name, catalog.hash());
}

// Serialises the contents of all index files for the ranks that do not read them.
std::string scan(const std::vector<SpeechLeaf>& leaves, const SpeechCorpusOptions& options) {
  auto all = nlohmann::json::array();
  for (const SpeechLeaf& leaf : leaves) {
    const AudioCatalog catalog = AudioCatalog::open(leaf.folder);
    const LabelFile labels = labels_of(catalog, options);
    auto texts = nlohmann::json::array();
    for (std::int64_t i = 0; options.validation && i < catalog.size(); ++i)
      texts.push_back(catalog.text(i));
    all.push_back(nlohmann::json::array(
        {catalog.serialise(), labels.serialise(), shards_of(catalog), texts}));
  }
  return to_bytes(all);
}

}  // namespace

void SpeechCorpus::rebuild(const std::string& image) {
  std::vector<TokenFile> files;
  for (const auto& parts : nlohmann::json::from_cbor(image)) {
    Folder folder;
    folder.catalog = AudioCatalog::deserialise(parts[0].get_ref<const std::string&>());
    folder.labels = LabelFile::deserialise(parts[1].get_ref<const std::string&>());
    folder.first = utterances_;
    folder.first_file = files.size();
    int shard = 0;
    for (const auto& samples : parts[2]) {
      TokenFile file;
      file.path = folder.catalog.shard_path(shard++);
      file.payload_offset = AudioCatalog::kHeaderBytes;
      file.count = samples.get<std::int64_t>();
      files.push_back(std::move(file));
    }
    for (const auto& text : parts[3]) folder.texts.push_back(text.get<std::string>());
    utterances_ += folder.catalog.size();
    folders_.push_back(std::move(folder));
  }
  audio_ = TokenStream::of_files(std::move(files), kSampleBytes);
}

void SpeechCorpus::check(const SpeechCorpusOptions& options) const {
  const Folder& first = folders_.front();
  const int rate = options.sample_rate > 0 ? options.sample_rate : first.catalog.sample_rate();
  const std::uint64_t hash =
      options.tokenizer_hash != 0 ? options.tokenizer_hash : first.labels.tokenizer_hash();
  for (const Folder& folder : folders_) {
    const std::string& name = folder.catalog.folder();
    if (folder.catalog.sample_rate() != rate)
      throw DataError(fmt::format("'{}' has {} Hz, {} {} Hz", name, folder.catalog.sample_rate(),
                                  options.sample_rate > 0 ? "the model" : "another folder", rate),
                      "prepare it again with 'choir prepare audio --sample-rate'");
    if (folder.labels.tokenizer_hash() != hash)
      throw DataError(fmt::format("the labels of '{}' use tokenizer {:016x}, {} {:016x}", name,
                                  folder.labels.tokenizer_hash(),
                                  options.tokenizer_hash != 0 ? "the model" : "others", hash),
                      options.validation
                          ? "validate in the same units: 'data.validation={}' leaves out the sets "
                            "of the deck, and data.val or data.validation name others"
                          : "use one tokenizer for all folders: `choir prepare tokens FOLDER "
                            "--tokenizer FILE`");
    if (folder.labels.size() != folder.catalog.size())
      throw DataError(fmt::format("'{}' has {} utterances and {} labels", name,
                                  folder.catalog.size(), folder.labels.size()),
                      "write the labels again with 'choir prepare tokens'");
  }
}

// Returns an entry per utterance, 1 if its checksum differs. Each rank checks its share.
std::vector<std::int32_t> SpeechCorpus::find_damage(Communicator& comm,
                                                    std::int64_t verify_bytes) const {
  std::vector<std::int32_t> damaged(static_cast<std::size_t>(utterances_), 0);
  together(comm, [&] {
    std::vector<std::int16_t> samples;
    for (const Folder& folder : folders_) {
      std::int64_t bytes = 0;
      for (std::int64_t i = 0; i < folder.catalog.size(); ++i)
        bytes += folder.catalog[i].samples * kSampleBytes;
      if (bytes > verify_bytes) continue;
      for (int shard = 0; shard < folder.catalog.shards(); ++shard) {
        const PosixFile file = PosixFile::for_reading(folder.catalog.shard_path(shard));
        for (std::int64_t i = comm.rank(); i < folder.catalog.size(); i += comm.size()) {
          const auto& u = folder.catalog[i];
          if (u.shard != shard) continue;
          samples.resize(static_cast<std::size_t>(u.samples));
          const std::size_t length = samples.size() * kSampleBytes;
          file.read_at(samples.data(), length, AudioCatalog::kHeaderBytes + u.first * kSampleBytes);
          damaged[static_cast<std::size_t>(folder.first + i)] =
              crc32c(samples.data(), length) != u.crc ? 1 : 0;
        }
      }
    }
  });
  if (!damaged.empty()) comm.all_reduce(damaged.data(), damaged.size(), DType::i32, ReduceOp::max);
  return damaged;
}

SpeechCorpus SpeechCorpus::load(Communicator& comm, Communicator* peers,
                                const std::vector<SpeechLeaf>& leaves,
                                const SpeechCorpusOptions& options) {
  const bool shares = peers != nullptr && peers->size() > 1;
  SpeechCorpus corpus;
  std::vector<std::int32_t> damaged;
  std::string image;
  const auto read = [&] {
    together(comm, [&] {
      if (comm.rank() == 0) image = scan(leaves, options);
    });
    share(comm, image);
    corpus.rebuild(image);
    damaged = corpus.find_damage(comm, options.verify_bytes);
  };
  if (!shares) {
    read();
  } else {
    together(*peers, [&] {
      if (peers->rank() == 0) read();
    });
    share(*peers, image);
    if (peers->rank() != 0) corpus.rebuild(image);
    damaged.resize(static_cast<std::size_t>(corpus.utterances_));
    peers->broadcast(damaged.data(), damaged.size() * sizeof(std::int32_t), 0);
  }
  corpus.sift_ = SpeechSift(options.filter, options.frames, options.validation);
  together(comm, [&] {
    corpus.check(options);
    for (int leaf = 0; leaf < corpus.folders(); ++leaf) {
      Folder& folder = corpus.folders_[static_cast<std::size_t>(leaf)];
      corpus.sift_.add(leaf, folder.catalog, folder.labels,
                       std::span(damaged).subspan(static_cast<std::size_t>(folder.first),
                                                  static_cast<std::size_t>(folder.catalog.size())),
                       folder.items);
      limit_items(folder.items, leaves[static_cast<std::size_t>(leaf)].limit);
    }
    corpus.sift_.require(options.on_bad, options.bad_cap, options.what);
  });
  return corpus;
}

TokenExtent SpeechCorpus::extent(const SpeechItem& item) const {
  const Folder& folder = at(item.leaf);
  const auto& u = folder.catalog[item.utterance];
  const TokenFile& file = audio_.files()[folder.first_file + static_cast<std::size_t>(u.shard)];
  return {file.first + u.first, u.samples};
}

std::uint32_t SpeechCorpus::crc(const SpeechItem& item) const {
  return catalog(item.leaf)[item.utterance].crc;
}

std::span<const std::int32_t> SpeechCorpus::labels(const SpeechItem& item) const {
  return at(item.leaf).labels[item.utterance];
}

bool SpeechCorpus::has_labels(const SpeechItem& item) const {
  return !at(item.leaf).labels.bad(item.utterance);
}

std::string SpeechCorpus::place_of(const SpeechItem& item) const {
  const AudioCatalog& catalog = at(item.leaf).catalog;
  const auto& u = catalog[item.utterance];
  return fmt::format("utterance {} of '{}' ('{}', samples {} to {})", item.utterance,
                     catalog.folder(), catalog.shard_path(u.shard), u.first, u.first + u.samples);
}

const std::string& SpeechCorpus::text(const SpeechItem& item) const {
  const Folder& folder = at(item.leaf);
  CHOIR_CHECK(!folder.texts.empty(), "texts are kept for validation only");
  return folder.texts[static_cast<std::size_t>(item.utterance)];
}

}  // namespace choir
