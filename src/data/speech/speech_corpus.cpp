#include "choir/data/speech/speech_corpus.hpp"

#include "choir/core/json_value.hpp"

#include "choir/comm/agreement.hpp"
#include "choir/core/crc32c.hpp"
#include "choir/core/error.hpp"
#include "src/data/audio/audio_shard.hpp"
#include "src/data/posix_file.hpp"

namespace choir {
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

// Serialises the contents of all index files for the ranks that do not read them.
std::string scan(const std::vector<SpeechLeaf>& leaves, const SpeechCorpusOptions& options) {
  auto all = nlohmann::json::array();
  for (const SpeechLeaf& leaf : leaves) {
    const AudioCatalog catalog = AudioCatalog::open(leaf.folder);
    const LabelFile labels = options.labels.empty()
                                 ? LabelFile::none(catalog.size())
                                 : LabelFile::open(leaf.folder, options.labels, catalog.hash());
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
                      "write them again with 'choir prepare tokens'");
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
