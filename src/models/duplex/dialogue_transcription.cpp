#include "src/models/duplex/dialogue_transcription.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "choir/core/error.hpp"
#include "choir/models/family.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/text.hpp"
#include "src/models/codec/codec_coder.hpp"
#include "src/models/fastconformer/fastconformer_config.hpp"
#include "src/run/inference_pass.hpp"
#include "src/run/run_setup.hpp"

namespace choir {

void require_family(const ReplicatedModel& run, bool right, const std::string& key,
                    const char* wanted) {
  if (right) return;
  throw DeckError(fmt::format("{}: {} has a model of model.type = \"{}\"", key, run.path(),
                              run.deck().family().name()),
                  fmt::format("name a run of model.type = \"{}\"", wanted));
}

Vocabulary units_of_recogniser(const ReplicatedModel& run, const std::string& key,
                               int sample_rate) {
  require_family(run, run.deck().family().transcribes(), key, "fastconformer");
  const auto& config = run.options().model.as<FastConformerConfig>();
  if (const auto rate = static_cast<int>(config.mel.sample_rate); rate != sample_rate)
    throw DeckError(fmt::format("{}: {} was trained on {} Hz, but the codec produces {} Hz", key,
                                run.path(), rate, sample_rate),
                    "name a recogniser that was trained on audio of the codec's rate");
  if (run.vocabulary().empty())
    throw DataError(fmt::format("{}: {} has no text units", key, run.path()),
                    "name a recogniser that was trained with labels of `choir prepare tokens`");
  Vocabulary units = Vocabulary::from_json(run.vocabulary(), run.path());
  if (const std::int64_t symbols = model_of(run.deck()).vocab_size(); units.size() != symbols)
    throw DataError(fmt::format("{}: the model of {} has {} text units, but its tokenizer has {}",
                                key, run.path(), symbols, units.size()),
                    "the checkpoint mixes files of two models");
  return units;
}

namespace {

void require_codec(const CodecCoder& coder, const CodecDescription& codes,
                   const ReplicatedModel& run) {
  if (coder.hash() == codes.hash) return;
  throw DataError(fmt::format("eval.codec: the dialogues have codes of codec {:016x}, but {} is "
                              "codec {:016x}",
                              codes.hash, run.path(), coder.hash()),
                  "name the run whose codes `choir prepare codes` made for them");
}

/// The arena for recordings of this number of samples in one pass on a device like `target`.
std::size_t plan_hearing(const ReplicatedModel& run, std::int64_t samples, const Device* target) {
  const auto& config = run.options().model.as<FastConformerConfig>();
  const double seconds = static_cast<double>(samples) / config.mel.sample_rate;
  const TranscriptionPlan plan = plan_transcription(
      run.options(), Layout(), 0,
      {.window_seconds = seconds + config.seconds_per_frame(), .batch = 1}, HUGE_VAL, target);
  if (config.frames(samples) > plan.windows.frames)
    throw DeckError(
        fmt::format("eval.recogniser: a dialogue has {:.0f} s, but {} transcribes at most {:.0f} s "
                    "at once",
                    seconds, run.path(),
                    static_cast<double>(plan.windows.frames) * config.seconds_per_frame()),
        "leave eval.recogniser and eval.codec out, or cut the dialogues");
  return plan.arena_bytes;
}

}  // namespace

AgentEar::AgentEar(const FamilyTable& table, const Runs& runs, const CodecDescription& codes,
                   std::int64_t frames, Communicator& world)
    : codes_(codes),
      samples_(frames * codes.frame_samples),
      where_(runs.device),
      codec_(table, runs.codec, world),
      recogniser_(table, runs.recogniser, world) {
  together(world, [&] {
    require_family(codec_, codec_.deck().family().name() == "codec", "eval.codec", "codec");
    const Vocabulary units =
        units_of_recogniser(recogniser_, "eval.recogniser", static_cast<int>(codes_.sample_rate));
    const auto& config = recogniser_.options().model.as<FastConformerConfig>();
    maker_.emplace(units, config.seconds_per_frame(), 0);
    plan_arenas(nullptr);
  });
}

AgentEar::Arenas AgentEar::plan_arenas(const Device* target) const {
  return {.codec = plan_codec(codec_.options(), target),
          .recogniser = plan_hearing(recogniser_, samples_, target)};
}

void AgentEar::add_to(MemoryPlan& plan, const Device* device) const {
  const bool on_cpu = device == nullptr || device->plans_for() == DeviceKind::cpu;
  const Device* const target = where_ == ScorerDevice::shared ? device : nullptr;
  // Memory of a CPU is the memory of the device only where the rank computes on the CPU, too.
  const MemoryPlace place = on_cpu || target != nullptr ? MemoryPlace::device : MemoryPlace::host;
  const Arenas arenas = plan_arenas(target);
  plan.add("codec (eval.codec)", codec_.memory(arenas.codec, target), false, place);
  plan.add("recogniser (eval.recogniser)", recogniser_.memory(arenas.recogniser, target), false,
           place);
}

std::string AgentEar::load(Device& device, Communicator& world) {
  Device& own = where_ == ScorerDevice::shared ? device : cpu_;
  Arenas arenas;
  together(world, [&] {
    for (const auto& [key, run] :
         {std::pair("eval.codec", &codec_), std::pair("eval.recogniser", &recogniser_)})
      if (own.kind() == DeviceKind::cuda && run->options().precision.compute == DType::f64)
        throw DeckError(
            fmt::format("{}: {} was trained in fp64, which GPUs do not compute", key, run->path()),
            "set eval.scorer_device to \"cpu\"");
    arenas = plan_arenas(&own);
  });
  ModelInstance& speaking = codec_.load(arenas.codec, own, world);
  hearing_ = &recogniser_.load(arenas.recogniser, own, world);
  together(world, [&] {
    coder_ = std::make_unique<CodecCoder>(speaking);
    require_codec(*coder_, codes_, codec_);
  });
  return fmt::format("eval.codec and eval.recogniser compute on {}", own.description());
}

std::string AgentEar::words(std::span<const std::int32_t> codes) {
  std::vector<std::int32_t> sound(codes.begin(), codes.end());
  const auto books = static_cast<std::size_t>(codes_.codebooks);
  for (std::size_t i = 0; i < sound.size(); ++i)
    if (sound[i] >= codes_.codes_per_book) sound[i] = codes_.silence[i % books];
  return transcribed(speak_codes(*coder_, sound, static_cast<std::int64_t>(sound.size() / books)));
}

std::string AgentEar::transcribed(std::span<const std::int16_t> audio) {
  const auto& config = hearing_->options().model.as<FastConformerConfig>();
  const std::int64_t frames = config.frames(std::ssize(audio));
  if (frames == 0) return {};
  const HostBatch host(
      config,
      {.samples = 1, .audio_samples = TranscriptionPlan::samples_of(config, frames), .labels = 1});
  const ModelBatch& batch = host.batch;
  const std::int64_t samples = std::min(std::ssize(audio), batch["audio"].shape[1]);
  std::copy_n(audio.begin(), samples, static_cast<std::int16_t*>(batch["audio"].data));
  batch["audio_lengths"].as<std::int32_t>()[0] = static_cast<std::int32_t>(samples);
  for (int stage = 0; stage <= config.stages(); ++stage)
    batch["frame_lengths"].as<std::int32_t>()[stage] =
        static_cast<std::int32_t>(config.lengths_after(stage, samples));
  const Tensor logits = hearing_->forward(Mode::generate, batch);
  const std::int64_t symbols = logits.shape.back();
  std::vector<float> scores(static_cast<std::size_t>(frames * symbols));
  look_at_scores(hearing_->device(), logits.slice(0, frames), scores_,
                 [&](const TensorView& rows) { to_floats(rows, scores); });
  TranscriptMaker::Frames best;
  maker_->add(best, scores, symbols);
  Transcript transcript;
  maker_->finish(best, transcript);
  return transcript.text;
}

UserEar::UserEar(const FamilyTable& table, const std::string& recogniser, const std::string& key,
                 int sample_rate, Communicator& world)
    : run_(table, recogniser, world) {
  StreamPlan plan;
  together(world, [&] {
    units_.emplace(units_of_recogniser(run_, key, sample_rate));
    const auto& config = run_.options().model.as<FastConformerConfig>();
    if (const auto against = keys_against_streaming(config); !against.empty())
      throw DeckError(
          fmt::format("{}: {} cannot stream: {}", key, run_.path(), join(against, ", ")),
          "use a recogniser that processes audio in chunks, for example one trained with "
          "inputs/asr_streaming.json");
    maker_.emplace(*units_, config.seconds_per_frame(), 0);
    labels_.emplace(maker_->blank());
    plan = plan_stream(run_.options(), Layout(), 0, HUGE_VAL, nullptr);
  });
  ModelInstance& instance = run_.load(plan.arena_bytes, cpu_, world);
  instance.arena().set_requests(plan.requests);
  together(world, [&] {
    stream_.emplace(instance);
    stream_->begin();
  });
}

std::string UserEar::hear(std::span<const std::int16_t> audio) {
  std::string words;
  while (!audio.empty()) {
    const auto part = std::min(audio.size(), static_cast<std::size_t>(stream_->room()));
    stream_->push(audio.first(part));
    audio = audio.subspan(part);
    words += hear_chunks();
  }
  return words;
}

std::string UserEar::end() {
  stream_->end();
  return hear_chunks() + characters_.finish();
}

std::string UserEar::hear_chunks() {
  while (stream_->ready()) {
    const Tensor logits = stream_->next();
    scores_.resize(static_cast<std::size_t>(logits.count()));
    to_floats(logits, scores_);
    frames_.best.clear();
    maker_->add(frames_, scores_, maker_->blank() + 1);
    for (const std::int32_t symbol : frames_.best) labels_->frame(symbol);
  }
  std::string words;
  for (const auto& labels = labels_->labels(); told_ < labels.size(); ++told_)
    words += characters_.push(units_->piece(labels[told_].label));
  return words;
}

}  // namespace choir
