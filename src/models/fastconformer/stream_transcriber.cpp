#include "src/models/fastconformer/stream_transcriber.hpp"

#include <algorithm>

#include "src/comm/agreement.hpp"
#include "src/core/quantities.hpp"
#include "src/run/inference_pass.hpp"

namespace choir {

GrowingTranscript::GrowingTranscript(const TranscriptMaker& maker)
    : maker_(&maker), best_(maker.blank()) {
  begin();
}

void GrowingTranscript::begin() {
  best_ = CtcCollapse(maker_->blank());
  if (maker_->beam() > 0) beam_.emplace(maker_->blank() + 1, CtcBeamSearch{.beam = maker_->beam()});
}

void GrowingTranscript::add(std::span<const float> logits) {
  const std::int64_t symbols = maker_->blank() + 1;
  frames_.best.clear();
  frames_.log_probabilities.clear();
  maker_->add(frames_, logits, symbols);
  for (const std::int32_t symbol : frames_.best) best_.frame(symbol);
  const std::span<const float> all = frames_.log_probabilities;
  const auto width = static_cast<std::size_t>(symbols);
  for (std::size_t at = 0; at < all.size(); at += width) beam_->frame(all.subspan(at, width));
}

std::vector<TimedLabel> GrowingTranscript::labels() const {
  return beam_ ? beam_->results().front().labels : best_.labels();
}

std::string GrowingTranscript::newest(std::size_t labels) const {
  const std::vector<TimedLabel> found = beam_ ? this->labels() : std::vector<TimedLabel>();
  const std::span<const TimedLabel> all = beam_ ? found : best_.labels();
  Transcript end;
  maker_->finish(all.subspan(all.size() - std::min(all.size(), labels)), end);
  return all.size() > labels ? "... " + end.text : end.text;
}

void GrowingTranscript::finish(Transcript& transcript) const {
  maker_->finish(labels(), transcript);
}

namespace {

/// Audio read at once; if it has another sample rate, each part is resampled with a margin on both
/// sides.
constexpr std::int64_t kBlockSeconds = 20;
constexpr std::size_t kNewestLabels = 48;

}  // namespace

/// The recording in progress.
struct StreamTranscriber::Source {
  explicit Source(std::size_t i) : index(i) {}
  std::size_t index;
  std::optional<Recording> recording;
  std::vector<std::int16_t> block;  ///< audio that is not yet pushed from `at` on
  std::size_t at = 0;
  std::int64_t read = 0;  ///< samples read so far
  Transcript transcript;
};

StreamTranscriber::StreamTranscriber(ModelInstance& instance, const Vocabulary& vocabulary,
                                     std::int64_t beam)
    : instance_(&instance),
      frame_seconds_(instance.options().model.as<FastConformerConfig>().seconds_per_frame()),
      rate_(instance.options().model.as<FastConformerConfig>().mel.sample_rate),
      symbols_(instance.options().model.vocab_size() + 1),
      maker_(vocabulary, frame_seconds_, beam),
      text_(maker_),
      stream_(instance) {}

bool StreamTranscriber::walks_together() const {
  return instance_->storage().sharding().values_sharded();
}

Communicator& StreamTranscriber::agreeing() const {
  Mesh& mesh = instance_->mesh();
  return walks_together() ? mesh.world() : mesh.host_peers();
}

/// True if `mine` is true on some rank that runs passes together with this one.
bool StreamTranscriber::any(bool mine) const {
  std::int64_t some = mine;
  if (walks_together()) agreeing().all_reduce(&some, 1, DType::i64, ReduceOp::max);
  return some != 0;
}

void StreamTranscriber::open(Source& source, std::span<const RecordingSource> sources,
                             OnBad on_bad) {
  stream_.begin();
  text_.begin();
  try {
    source.recording.emplace(Recording::open(sources[source.index], static_cast<int>(rate_)));
    source.transcript.seconds = source.recording->seconds();
    source.transcript.note = source.recording->shortfall();
  } catch (const AudioError& error) {
    if (on_bad == OnBad::stop) throw;
    source.transcript.fault = error.what();
  }
}

bool StreamTranscriber::feed(Source& source, OnBad on_bad) {
  if (!source.recording) return false;
  try {
    while (!stream_.ready()) {
      if (source.at == source.block.size()) {
        const std::int64_t left = source.recording->samples() - source.read;
        if (left == 0) {
          stream_.end();
          break;
        }
        source.block = source.recording->read(source.read, std::min(left, kBlockSeconds * rate_));
        if (std::string overload = source.recording->overload(); !overload.empty())
          source.transcript.note = std::move(overload);
        source.at = 0;
        source.read += std::ssize(source.block);
      }
      const auto rest = std::span<const std::int16_t>(source.block).subspan(source.at);
      const auto count = std::min(rest.size(), static_cast<std::size_t>(stream_.room()));
      stream_.push(rest.first(count));
      source.at += count;
    }
  } catch (const AudioError& error) {
    if (on_bad == OnBad::stop) throw;
    source.recording.reset();
    source.transcript = {.fault = error.what()};
    return false;
  }
  return stream_.ready();
}

void StreamTranscriber::chunk(Source& source, const Heard& heard) {
  const double begin = now_seconds();
  const Tensor logits = stream_.next();
  together(agreeing(), [&] {
    scores_.resize(static_cast<std::size_t>(logits.count()));
    look_at_scores(instance_->device(), logits, memory_,
                   [&](const TensorView& there) { to_floats(there, scores_); });
    text_.add(scores_);
  });
  source.transcript.chunk_seconds.push_back(now_seconds() - begin);
  if (heard)
    heard(source.index,
          std::min(source.transcript.seconds,
                   static_cast<double>(source.transcript.chunk_seconds.size()) *
                       static_cast<double>(stream_.chunks().frames) * frame_seconds_),
          text_.newest(kNewestLabels));
}

/// Runs a pass of silence for the ranks that share parameters with this rank, which has no audio.
void StreamTranscriber::idle() {
  stream_.begin();
  const std::vector<std::int16_t> silence(static_cast<std::size_t>(stream_.room()));
  stream_.push(silence);
  stream_.next();
  together(agreeing(), [] {});
}

void StreamTranscriber::finish(Source& source) {
  if (!source.transcript.fault.empty()) return;
  if (source.transcript.chunk_seconds.empty())
    source.transcript.note = fmt::format("too short: {} samples are not one frame", source.read);
  text_.finish(source.transcript);
}

std::vector<Transcript> StreamTranscriber::transcribe(std::span<const RecordingSource> sources,
                                                      OnBad on_bad, const Heard& heard) {
  std::vector<Transcript> transcripts;
  std::optional<Source> source;
  for (;;) {
    bool ready = false;
    together(agreeing(), [&] {
      while (!ready && (source || transcripts.size() < sources.size())) {
        if (!source) open(source.emplace(transcripts.size()), sources, on_bad);
        ready = feed(*source, on_bad);
        if (ready) continue;
        finish(*source);
        transcripts.push_back(std::move(source->transcript));
        source.reset();
      }
    });
    if (!any(ready)) return transcripts;
    ready ? chunk(*source, heard) : idle();
  }
}

}  // namespace choir
