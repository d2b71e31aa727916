#include "src/data/speech/speech_reader.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/comm/mpi/mpi_communicator.hpp"
#include "src/core/hash.hpp"

namespace choir {

bool SpeechDamage::add(std::int64_t utterance, const std::string& line) {
  const std::lock_guard lock(mutex_);
  if (!utterances_.insert(utterance).second) return false;
  lines_.push_back(line);
  return true;
}

std::int64_t SpeechDamage::count() const {
  const std::lock_guard lock(mutex_);
  return std::ssize(utterances_);
}

std::vector<std::string> SpeechDamage::take_lines() {
  const std::lock_guard lock(mutex_);
  return std::exchange(lines_, {});
}

namespace {

[[noreturn]] void refuse_damaged(const std::string& place) {
  throw DataError(fmt::format("{} is damaged: its samples do not match their checksum", place),
                  "copy or prepare the audio again, or set data.on_bad to skip");
}

[[noreturn]] void refuse_so_many(std::int64_t count, double cap, const SpeechCorpus& corpus,
                                 const std::string& last) {
  throw DataError(fmt::format("{} of {} utterances are damaged, more than {:g} %; the last is {}",
                              count, corpus.utterances(), 100 * cap, last),
                  "copy or prepare the audio again");
}

std::string left_out_line(const std::string& place) {
  return fmt::format("{} is damaged and left out", place);
}

}  // namespace

ResidentAudio::ResidentAudio(Communicator& comm, const SpeechCorpus& corpus,
                             const SpeechDataConfig& config, SpeechDamage& damage, Device& device)
    : corpus_(corpus), memory_(device, bytes_of(corpus)) {
  constexpr std::size_t kTogether = 64;  // utterances in a read
  std::vector<SpeechItem> items;
  std::int64_t longest = 0;
  for (int leaf = 0; leaf < corpus.folders(); ++leaf)
    for (const SpeechItem& item : corpus.items(leaf)) {
      items.push_back(item);
      longest = std::max<std::int64_t>(longest, item.samples);
    }
  ReaderOptions plain = config.reader;
  plain.preload = Preload::none;
  const auto own = comm.duplicate("data.resident");
  const auto reader = make_reader(*own, corpus.audio(), plain,
                                  static_cast<std::int64_t>(kTogether) * longest, kTogether);
  std::vector<TokenExtent> extents;
  for (std::size_t first = 0; first < items.size(); first += kTogether) {
    const std::span now =
        std::span(items).subspan(first, std::min(kTogether, items.size() - first));
    extents.clear();
    for (const SpeechItem& item : now) extents.push_back(corpus.extent(item));
    const auto* packed = static_cast<const char*>(reader->read(extents));
    together(comm, [&] {
      for (const SpeechItem& item : now) {
        const std::size_t bytes = static_cast<std::size_t>(item.samples) * sizeof(std::uint16_t);
        device.copy_from_host(const_cast<std::byte*>(at(item)), packed, bytes);
        if (crc32c(packed, bytes) != corpus.crc(item)) {
          const std::string place = corpus.place_of(item);
          if (config.on_bad == OnBad::stop) refuse_damaged(place);
          damaged_.insert(corpus.number(item));
          damage.add(corpus.number(item), left_out_line(place));
          if (static_cast<double>(damage.count()) >
              config.bad_cap * static_cast<double>(corpus.utterances()))
            refuse_so_many(damage.count(), config.bad_cap, corpus, place);
        }
        packed += bytes;
      }
    });
  }
}

SpeechRowReader::SpeechRowReader(Communicator& comm, const std::string& name,
                                 const SpeechCorpus& corpus, const SpeechDataConfig& config,
                                 std::span<const SpeechShape> shapes, SpeechDamage& damage,
                                 const ResidentAudio* resident)
    : corpus_(corpus),
      on_bad_(config.on_bad),
      bad_cap_(config.bad_cap),
      damage_(damage),
      resident_(resident) {
  std::int64_t rows = 1, samples = 1;
  for (const SpeechShape& shape : shapes) {
    rows = std::max(rows, shape.utterances);
    samples = std::max(samples, shape.utterances * shape.samples);
  }
  damaged_.resize(static_cast<std::size_t>(rows));
  extents_.reserve(damaged_.size());
  broken_.reserve(damaged_.size());
  if (resident_ != nullptr) return;
  if (config.peers != nullptr && config.peers->size() > 1) {
    peers_ = config.peers->duplicate(name + ".peers");
    sharers_ = std::make_unique<MpiGroup>(*peers_);
    if (peers_->rank() != 0) return;
  }
  comm_ = comm.duplicate(name);
  readers_ = std::make_unique<MpiGroup>(*comm_);
  reader_ = make_reader(*comm_, corpus.audio(), config.reader, samples, rows);
}

void SpeechRowReader::abandon() {
  if (sharers_) sharers_->abandon();
  if (readers_) readers_->abandon();
  if (reader_) reader_->abandon();
}

void SpeechRowReader::read(std::span<const SpeechRow> rows, SpeechBatchBuffer& to) {
  to.lay_out(rows, corpus_);
  std::fill(damaged_.begin(), damaged_.end(), 0);
  if (resident_ != nullptr) {
    find_resident(to);
  } else if (!sharers_) {
    read_files(to);
  } else {
    sharers_->agree([&] {
      if (reader_) read_files(to);
    });
    broadcast(to);
  }
  for (std::int64_t r = 0; r < std::ssize(rows); ++r)
    if (damaged_[static_cast<std::size_t>(r)] != 0) to.empty_row(r);
}

void SpeechRowReader::find_resident(SpeechBatchBuffer& to) {
  to.batch.audio.data = nullptr;
  to.resident.assign(static_cast<std::size_t>(to.batch.audio.shape[0]), nullptr);
  for (std::size_t r = 0; r < to.rows.size(); ++r) {
    to.resident[r] = resident_->at(to.rows[r].item);
    damaged_[r] = resident_->damaged(to.rows[r].item) ? 1 : 0;
  }
  to.batch.resident = to.resident.data();
}

void SpeechRowReader::read_files(SpeechBatchBuffer& to) {
  extents_.clear();
  for (const SpeechRow& row : to.rows) extents_.push_back(corpus_.extent(row.item));
  const auto* packed = static_cast<const char*>(reader_->read(extents_));
  std::int64_t most = 0;
  readers_->agree(
      [&] {
        unpack(packed, to);
        most = std::ssize(broken_);
        if (most > 0 && on_bad_ == OnBad::stop) refuse_damaged(corpus_.place_of(broken_.front()));
      },
      {&most, 1});
  if (most > 0) tell_damage(most);
}

void SpeechRowReader::unpack(const char* packed, SpeechBatchBuffer& to) {
  broken_.clear();
  const std::int64_t s = to.batch.audio.shape[1];
  auto* audio = to.batch.audio.as<std::uint16_t>();
  const auto padding = static_cast<std::int64_t>(to.rows.size()) * s;
  std::fill_n(audio + padding, to.batch.audio.count() - padding, 0);
  for (std::size_t r = 0; r < to.rows.size(); ++r, audio += s) {
    const SpeechItem& item = to.rows[r].item;
    const std::size_t bytes = static_cast<std::size_t>(item.samples) * sizeof(std::uint16_t);
    std::memcpy(audio, packed, bytes);
    std::fill(audio + item.samples, audio + s, 0);
    if (crc32c(packed, bytes) != corpus_.crc(item)) {
      damaged_[r] = 1;
      broken_.push_back(item);
    }
    packed += bytes;
  }
}

// Exchanges what each reading rank found damaged, so that all count the same. This is rare.
void SpeechRowReader::tell_damage(std::int64_t most) {
  const auto width = static_cast<std::size_t>(2 * most);
  const auto ranks = static_cast<std::size_t>(readers_->size());
  std::vector<std::int32_t> mine(width, -1), all(width * ranks, -1);
  for (std::size_t i = 0; i < broken_.size(); ++i) {
    mine[2 * i] = broken_[i].leaf;
    mine[2 * i + 1] = broken_[i].utterance;
  }
  MPI_Request request;
  mpi_check(MPI_Iallgather(mine.data(), static_cast<int>(width), MPI_INT32_T, all.data(),
                           static_cast<int>(width), MPI_INT32_T, readers_->all(), &request),
            "MPI_Iallgather");
  readers_->wait(request);
  SpeechItem item;
  for (std::size_t i = 0; i < all.size(); i += 2) {
    if (all[i] < 0) continue;
    item = {all[i], all[i + 1], 0, 0};
    damage_.add(corpus_.number(item), left_out_line(corpus_.place_of(item)));
  }
  const std::int64_t count = damage_.count();
  if (static_cast<double>(count) <= bad_cap_ * static_cast<double>(corpus_.utterances())) return;
  readers_->agree([&] { refuse_so_many(count, bad_cap_, corpus_, corpus_.place_of(item)); });
}

void SpeechRowReader::broadcast(SpeechBatchBuffer& to) {
  if (to.rows.empty()) {
    std::fill_n(to.batch.audio.as<std::uint16_t>(), to.batch.audio.count(), 0);
    return;
  }
  sharers_->broadcast(to.batch.audio.data, to.batch.audio.bytes());
  sharers_->broadcast(damaged_.data(), to.rows.size() * sizeof damaged_.front());
}

namespace {

SpeechCorpusOptions options_of(const SpeechDataConfig& config, const SpeechEvalSet& set,
                               int sample_rate, std::uint64_t tokenizer_hash) {
  SpeechCorpusOptions options;
  options.labels = config.labels;
  options.own_labels = config.own_labels;
  options.make_labels = config.make_labels;
  options.sample_rate = sample_rate;
  options.tokenizer_hash = tokenizer_hash;
  options.frames = config.frames;
  options.filter = set.filter;
  options.validation = true;
  options.on_bad = config.on_bad;
  options.bad_cap = config.bad_cap;
  options.verify_bytes = config.verify_bytes;
  options.what = fmt::format("validation set '{}'", set.name);
  return options;
}

}  // namespace

std::vector<SpeechLeaf> leaves_of(const SpeechEvalSet& set) {
  CHOIR_CHECK(set.tags.empty() || set.tags.size() == set.folders.size(), "{} tags of {} folders",
              set.tags.size(), set.folders.size());
  std::vector<SpeechLeaf> leaves = leaves_of(SpeechMix::of_folders(set.folders));
  for (std::size_t i = 0; i < set.tags.size(); ++i) leaves[i].tags = set.tags[i];
  return leaves;
}

SpeechEvaluation::SpeechEvaluation(Communicator& comm, const SpeechDataConfig& config,
                                   const SpeechEvalSet& set, int sample_rate,
                                   std::uint64_t tokenizer_hash)
    : name_(set.name),
      rank_(comm.rank()),
      ranks_(comm.size()),
      leaves_(leaves_of(set)),
      corpus_(SpeechCorpus::load(comm, config.peers, leaves_,
                                 options_of(config, set, sample_rate, tokenizer_hash))) {
  choose(set.limit);
  cut(config, set.batch_duration > 0 ? set.batch_duration : config.batching.batch_duration);
  buffer_ = std::make_unique<SpeechBatchBuffer>(shapes_, config.frames);
  reader_ = std::make_unique<SpeechRowReader>(comm, "data.eval." + name_, corpus_, config, shapes_,
                                              damage_);
}

// Chooses utterances evenly spread over the set and sorts them, longest first: similar lengths
// share micro-batches, and the largest memory is needed at once.
void SpeechEvaluation::choose(std::int64_t limit) {
  for (int leaf = 0; leaf < corpus_.folders(); ++leaf)
    for (const SpeechItem& item : corpus_.items(leaf)) rows_.push_back({item, 0});
  const std::int64_t n = std::ssize(rows_);
  if (limit > 0 && limit < n) {
    for (std::int64_t i = 0; i < limit; ++i)
      rows_[static_cast<std::size_t>(i)] = rows_[static_cast<std::size_t>(i * n / limit)];
    rows_.resize(static_cast<std::size_t>(limit));
  }
  std::stable_sort(rows_.begin(), rows_.end(), [](const SpeechRow& a, const SpeechRow& b) {
    return a.item.samples > b.item.samples;
  });
  for (const SpeechRow& row : rows_) targets_ += row.item.labels;
}

void SpeechEvaluation::cut(const SpeechDataConfig& config, double batch_duration) {
  const SpeechBucketOptions& o = config.batching;
  const auto effective = [&](std::int32_t samples) {
    const double d = static_cast<double>(samples) / corpus_.sample_rate();
    return o.quadratic_duration > 0 ? d + d * d / o.quadratic_duration : d;
  };
  begins_ = {0};
  for (std::size_t first = 0; first < rows_.size();) {
    const std::int32_t longest = rows_[first].item.samples;
    auto count = static_cast<std::size_t>(std::max(1.0, batch_duration / effective(longest)));
    if (o.max_samples > 0) count = std::min(count, static_cast<std::size_t>(o.max_samples));
    count = std::min(count, rows_.size() - first);
    std::int64_t labels = 1;
    for (std::size_t i = first; i < first + count; ++i)
      labels = std::max<std::int64_t>(labels, rows_[i].item.labels);
    shapes_.push_back({static_cast<std::int64_t>(count), config.frames.padded(longest), labels});
    first += count;
    begins_.push_back(static_cast<std::int64_t>(first));
  }
}

std::size_t SpeechEvaluation::bytes() const {
  return buffer_->bytes() + (reader_->reader() != nullptr ? reader_->reader()->bytes() : 0);
}

const SpeechBatch& SpeechEvaluation::batch(std::int64_t call) {
  const std::int64_t e = call * ranks_ + rank_;
  std::span<const SpeechRow> rows;
  if (e < std::ssize(shapes_)) {
    const auto first = static_cast<std::size_t>(begins_[static_cast<std::size_t>(e)]);
    const auto end = static_cast<std::size_t>(begins_[static_cast<std::size_t>(e) + 1]);
    rows = std::span(rows_).subspan(first, end - first);
  }
  reader_->read(rows, *buffer_);
  buffer_->batch.micro_batch = e;
  buffer_->batch.step_targets = targets_;
  return buffer_->batch;
}

}  // namespace choir
