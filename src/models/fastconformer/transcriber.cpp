#include "src/models/fastconformer/transcriber.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>

#include "choir/models/family.hpp"
#include "kernels/relative_attention/relative_attention.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/quantities.hpp"
#include "src/device/cuda.hpp"
#include "src/run/inference_pass.hpp"
#include "src/run/null_instance.hpp"

namespace choir {
namespace {

/// Frames that saturate a processor, and a card: larger batches are no faster.
constexpr std::int64_t kFramesOfCpu = 2048, kFramesOfCard = 65536;

/// The memory of passes, measured on the null device.
class PassMemory {
 public:
  PassMemory(const ModelInstance::Options& options, const Layout& layout, int rank,
             const Device* target)
      : config_(options.model.as<FastConformerConfig>()),
        instance_(options, layout, rank, target) {}

  /// Total bytes for all passes so far and for one of `rows` windows of `frames`.
  std::size_t need(std::int64_t rows, std::int64_t frames) {
    const BatchShape shape{.samples = rows,
                           .audio_samples = TranscriptionPlan::samples_of(config_, frames),
                           .labels = 1};
    instance_->forward(Mode::generate, HostBatch(config_, shape).batch);
    return total();
  }
  /// Total bytes for all passes so far.
  std::size_t total() const {
    MemoryPlan plan;
    instance_->add_to(plan);
    return plan.total();
  }
  std::size_t arena_peak() { return instance_->arena().peak(); }

 private:
  FastConformerConfig config_;
  NullInstance instance_;
};

std::int64_t frames_in(const FastConformerConfig& config, double seconds) {
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(seconds / config.seconds_per_frame()));
}

/// The most frames of one window that fit, up to `last`; 0 if even `first` does not fit.
std::int64_t most_frames(PassMemory& model, std::int64_t first, std::int64_t last, double budget) {
  std::int64_t fits = 0;
  for (std::int64_t frames = first;; frames = std::min(last, frames + (frames + 3) / 4)) {
    if (static_cast<double>(model.need(1, frames)) > budget) return fits;
    fits = frames;
    if (frames == last) return fits;
  }
}

/// Batches of at most `area` frames, or of one window.
std::vector<BatchLimit> limits_of(std::int64_t window, std::int64_t area, std::int64_t batch) {
  std::vector<BatchLimit> limits{{1, window}};
  for (std::int64_t rows = 2; rows <= std::min(batch, area); ++rows)
    limits.push_back({rows, std::min(window, area / rows)});
  return limits;
}

}  // namespace

std::int64_t TranscriptionPlan::rows_for(std::int64_t frames) const {
  std::int64_t rows = 1;
  for (const BatchLimit& limit : limits)
    if (frames <= limit.frames) rows = std::max(rows, limit.rows);
  return rows;
}

TranscriptionPlan plan_transcription(const ModelInstance::Options& options, const Layout& layout,
                                     int rank, const TranscriptionOptions& request, double budget,
                                     const Device* target) {
  const FastConformerConfig& config = options.model.as<FastConformerConfig>();
  const std::int64_t smallest = plan_windows(config, 1, 1).frames;
  constexpr std::int64_t kMost = ops::kMostRelativeFrames;
  const std::int64_t wanted = std::min(kMost, frames_in(config, request.window_seconds));
  const std::int64_t largest = plan_windows(config, wanted, kMost).frames;
  TranscriptionPlan plan{.align = reach_of(config).align};
  {
    PassMemory model(options, layout, rank, target);
    const std::int64_t most =
        most_frames(model, std::min(smallest, largest), std::max(smallest, largest), budget);
    if (most == 0)
      throw DeckError(
          fmt::format(
              "out of memory: a window of {:.1f} s needs {} with the parameters, but only {} are "
              "allowed",
              static_cast<double>(smallest) * config.seconds_per_frame(),
              format_bytes(static_cast<double>(model.total())), format_bytes(budget)),
          "raise --memory, or divide the model with --tensor");
    plan.windows = plan_windows(config, wanted, most);
  }
  const bool card = target && target->plans_for() == DeviceKind::cuda;
  for (std::int64_t area = std::max(plan.windows.frames, card ? kFramesOfCard : kFramesOfCpu);;
       area /= 2) {
    PassMemory model(options, layout, rank, target);
    plan.limits = limits_of(plan.windows.frames, area, request.batch);
    for (const BatchLimit& limit : plan.limits)
      plan.total_bytes = model.need(limit.rows, limit.frames);
    plan.arena_bytes = model.arena_peak();
    if (plan.limits.size() == 1 || static_cast<double>(plan.total_bytes) <= budget) return plan;
  }
}

double default_transcription_memory(const Device& device, int ranks_per_node) {
  if (const cuda::Card* card = cuda::card_of(device))
    return 0.5 * static_cast<double>(card->memory);
  return 0.25 * node_memory() / ranks_per_node;
}

TranscriptMaker::TranscriptMaker(const Vocabulary& vocabulary, double seconds_per_frame,
                                 std::int64_t beam)
    : seconds_per_frame_(seconds_per_frame), beam_(beam) {
  for (std::int32_t id = 0; id < vocabulary.size(); ++id) pieces_.push_back(vocabulary.piece(id));
}

void TranscriptMaker::add(Frames& frames, std::span<const float> logits,
                          std::int64_t symbols) const {
  const auto width = static_cast<std::size_t>(symbols);
  for (std::size_t at = 0; at < logits.size(); at += width) {
    const auto row = logits.subspan(at, width);
    const auto most = std::max_element(row.begin(), row.end());
    double sum = 0;
    for (const float x : row) sum += std::exp(static_cast<double>(x) - *most);
    if (!std::isfinite(sum))
      throw NumericError("the model's scores are not finite",
                         "the checkpoint is damaged, or its precision too narrow; try "
                         "--precision fp32");
    if (beam_ == 0) {
      frames.best.push_back(static_cast<std::int32_t>(most - row.begin()));
      continue;
    }
    const double normaliser = *most + std::log(sum);
    for (const float x : row)
      frames.log_probabilities.push_back(static_cast<float>(x - normaliser));
  }
}

void TranscriptMaker::finish(const Frames& frames, Transcript& transcript) const {
  std::vector<TimedLabel> labels;
  if (beam_ == 0)
    labels = ctc_collapse(frames.best, blank());
  else if (!frames.log_probabilities.empty())
    labels = ctc_beam_search(frames.log_probabilities, blank() + 1, {.beam = beam_}).front().labels;
  finish(labels, transcript);
}

void TranscriptMaker::finish(std::span<const TimedLabel> labels, Transcript& transcript) const {
  for (const TimedWord& word : timed_words(labels, pieces_)) {
    transcript.text += (transcript.text.empty() ? "" : " ") + word.text;
    transcript.words.push_back(
        {.text = word.text,
         .start = static_cast<double>(word.first) * seconds_per_frame_,
         .end = std::min(transcript.seconds,
                         static_cast<double>(word.last + 1) * seconds_per_frame_)});
  }
}

namespace {

/// Padded lengths are multiples of a sixteenth, so that products have few different sizes.
std::int64_t stepped(std::int64_t frames, std::int64_t most) {
  const std::int64_t step = std::max<std::int64_t>(1, frames / 16);
  return std::max(frames, std::min((frames + step - 1) / step * step, most));
}

}  // namespace

/// A recording in progress.
struct Transcriber::Item {
  RecordingSource source;
  std::int64_t samples = 0;
  std::vector<RecordingWindow> windows;
  std::size_t taken = 0;  ///< windows done
  /// The frames of its windows, which are not completed in order.
  std::vector<TranscriptMaker::Frames> frames;
  Transcript transcript;
  std::string overload;  ///< Recording::overload()
};

struct Transcriber::Job {
  std::size_t item = 0, window = 0;
  std::int64_t frames = 0;
};

/// The last file that was read, which stays open.
struct Transcriber::Open {
  std::optional<Recording> recording;
  std::size_t item = 0;
};

Transcriber::Transcriber(ModelInstance& instance, const Vocabulary& vocabulary,
                         const TranscriptionPlan& plan, std::int64_t beam)
    : instance_(&instance),
      config_(instance.options().model.as<FastConformerConfig>()),
      plan_(plan),
      maker_(vocabulary, config_.seconds_per_frame(), beam) {}

bool Transcriber::walks_together() const {
  return instance_->storage().sharding().values_sharded();
}

Communicator& Transcriber::agreeing() const {
  Mesh& mesh = instance_->mesh();
  return walks_together() ? mesh.world() : mesh.host_peers();
}

void Transcriber::survey(Item& item) const {
  Recording recording = Recording::open(item.source, static_cast<int>(config_.mel.sample_rate));
  item.samples = recording.samples();
  item.transcript.seconds = recording.seconds();
  item.transcript.note = recording.shortfall();
  const std::int64_t frames = config_.frames(item.samples);
  if (frames == 0) {
    item.transcript.note =
        fmt::format("too short: {} samples are not one frame of {}", item.samples, config_.mel.hop);
    return;
  }
  item.windows = windows_of(plan_.windows, frames, plan_.align);
  item.frames.resize(item.windows.size());
}

std::vector<Transcript> Transcriber::transcribe(std::span<const RecordingSource> sources,
                                                OnBad on_bad,
                                                const std::function<void(double)>& progress) {
  std::vector<Item> items;
  std::vector<Job> jobs;
  together(agreeing(), [&] {
    for (const RecordingSource& source : sources) {
      Item& item = items.emplace_back();
      item.source = source;
      try {
        survey(item);
      } catch (const AudioError& error) {
        if (on_bad == OnBad::stop) throw;
        item.transcript.fault = error.what();
      }
      for (std::size_t w = 0; w < item.windows.size(); ++w)
        jobs.push_back({items.size() - 1, w, item.windows[w].end - item.windows[w].first});
    }
  });
  std::stable_sort(jobs.begin(), jobs.end(),
                   [](const Job& a, const Job& b) { return a.frames > b.frames; });
  Open open;
  for (std::size_t first = 0;;) {
    const std::size_t count = next_batch(jobs, first);
    std::int64_t more = count > 0;
    if (walks_together()) agreeing().all_reduce(&more, 1, DType::i64, ReduceOp::max);
    if (more == 0) break;
    const auto batch = std::span<const Job>(jobs).subspan(first, count);
    run_batch(batch, items, open, on_bad);
    double seconds = 0;
    for (const Job& job : batch) {
      const RecordingWindow& window = items[job.item].windows[job.window];
      seconds +=
          static_cast<double>(window.keep_end - window.keep_first) * config_.seconds_per_frame();
    }
    if (progress) progress(seconds);
    first += count;
  }
  std::vector<Transcript> transcripts;
  for (Item& item : items) transcripts.push_back(std::move(item.transcript));
  return transcripts;
}

/// The number of windows from `first` on that share a pass; the first one is the longest.
std::size_t Transcriber::next_batch(const std::vector<Job>& jobs, std::size_t first) const {
  if (first == jobs.size()) return 0;
  const std::int64_t rows = plan_.rows_for(stepped(jobs[first].frames, plan_.windows.frames));
  return std::min(static_cast<std::size_t>(rows), jobs.size() - first);
}

void Transcriber::run_batch(std::span<const Job> jobs, std::vector<Item>& items, Open& open,
                            OnBad on_bad) {
  const std::int64_t longest = jobs.empty() ? 1 : jobs.front().frames;
  const HostBatch host(
      config_, {.samples = std::max<std::int64_t>(1, std::ssize(jobs)),
                .audio_samples = plan_.samples_of(config_, stepped(longest, plan_.windows.frames)),
                .labels = 1});
  const ModelBatch& batch = host.batch;
  std::memset(batch["audio_lengths"].data, 0, batch["audio_lengths"].bytes());
  std::memset(batch["frame_lengths"].data, 0, batch["frame_lengths"].bytes());
  together(agreeing(), [&] {
    for (std::size_t row = 0; row < jobs.size(); ++row)
      read_row(jobs[row], items[jobs[row].item], open, batch, static_cast<std::int64_t>(row),
               on_bad);
  });
  const Tensor logits = instance_->forward(Mode::generate, batch);
  together(agreeing(), [&] { take_logits(logits, jobs, items, batch); });
}

void Transcriber::read_row(const Job& job, Item& item, Open& open, const ModelBatch& batch,
                           std::int64_t row, OnBad on_bad) {
  if (!item.transcript.fault.empty()) return;
  const std::int64_t unit = config_.mel.hop * config_.subsampling;
  const RecordingWindow& window = item.windows[job.window];
  const bool ends = job.window + 1 == item.windows.size();
  const std::int64_t first = window.first * unit;
  const std::int64_t room = batch["audio"].shape[1];
  const std::int64_t count = std::min(room, (ends ? item.samples : window.end * unit) - first);
  std::vector<std::int16_t> samples;
  try {
    if (!open.recording || open.item != job.item) {
      open.recording.reset();
      open.recording.emplace(
          Recording::open(item.source, static_cast<int>(config_.mel.sample_rate)));
      open.item = job.item;
    }
    samples = open.recording->read(first, count);
    if (std::string overload = open.recording->overload(); !overload.empty())
      item.overload = std::move(overload);
  } catch (const AudioError& error) {
    open.recording.reset();
    if (on_bad == OnBad::stop) throw;
    item.transcript.fault = error.what();
    return;
  }
  std::memcpy(static_cast<std::int16_t*>(batch["audio"].data) + row * room, samples.data(),
              samples.size() * sizeof samples.front());
  batch["audio_lengths"].as<std::int32_t>()[row] = static_cast<std::int32_t>(count);
  for (int stage = 0; stage <= config_.stages(); ++stage)
    batch["frame_lengths"].as<std::int32_t>()[stage * batch.samples + row] =
        static_cast<std::int32_t>(config_.lengths_after(stage, count));
}

void Transcriber::take_logits(const Tensor& logits, std::span<const Job> jobs,
                              std::vector<Item>& items, const ModelBatch& batch) {
  if (logits.empty() || instance_->device().kind() == DeviceKind::null) return;
  TensorView host = logits;
  std::vector<std::byte> copy;
  if (!instance_->device().host_visible()) {
    copy.resize(logits.bytes());
    instance_->device().copy_to_host(copy.data(), logits.data, copy.size());
    host.data = copy.data();
  }
  const std::int64_t symbols = logits.shape.back();
  const std::int64_t tokens = logits.shape.rows() / batch.samples;
  std::vector<float> scores;
  for (std::size_t row = 0; row < jobs.size(); ++row) {
    Item& item = items[jobs[row].item];
    if (!item.transcript.fault.empty()) continue;
    const RecordingWindow& window = item.windows[jobs[row].window];
    const std::int64_t count = window.keep_end - window.keep_first;
    scores.resize(static_cast<std::size_t>(count * symbols));
    to_floats(host.slice(static_cast<std::int64_t>(row) * tokens + window.keep_first - window.first,
                         count),
              scores);
    maker_.add(item.frames[jobs[row].window], scores, symbols);
    if (++item.taken < item.windows.size()) continue;
    TranscriptMaker::Frames& all = item.frames.front();
    for (std::size_t w = 1; w < item.frames.size(); ++w) {
      const TranscriptMaker::Frames& part = item.frames[w];
      all.best.insert(all.best.end(), part.best.begin(), part.best.end());
      all.log_probabilities.insert(all.log_probabilities.end(), part.log_probabilities.begin(),
                                   part.log_probabilities.end());
    }
    maker_.finish(all, item.transcript);
    if (!item.overload.empty()) item.transcript.note = item.overload;
    item.frames.clear();
  }
}

}  // namespace choir
