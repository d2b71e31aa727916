#include "src/models/duplex/agent_ear.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "choir/comm/agreement.hpp"
#include "choir/models/codec/codec_voice.hpp"
#include "src/infer/host_scores.hpp"
#include "src/models/duplex/recogniser_run.hpp"

namespace choir {
namespace {

void require_codec(const CodecCoder& coder, const CodecDescription& codes, const WholeModel& run) {
  if (coder.hash() == codes.hash) return;
  throw DataError(fmt::format("eval.codec: the dialogues have codes of codec {:016x}, but {} is "
                              "codec {:016x}",
                              codes.hash, run.path(), coder.hash()),
                  "name the run whose codes `choir prepare codes` made for them");
}

/// The arena for recordings of this number of samples in one pass.
std::size_t plan_hearing(const WholeModel& run, std::int64_t samples) {
  const auto& config = run.options().model.as<FastConformerConfig>();
  const double seconds = static_cast<double>(samples) / config.mel.sample_rate;
  const TranscriptionPlan plan = plan_transcription(
      run.options(), Layout(), 0,
      {.window_seconds = seconds + config.seconds_per_frame(), .batch = 1}, HUGE_VAL, nullptr);
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

AgentEar::AgentEar(const Runs& runs, const CodecDescription& codes, std::int64_t frames,
                   Communicator& world)
    : codes_(codes), codec_(runs.codec, world), recogniser_(runs.recogniser, world) {
  std::size_t of_codec = 0, of_recogniser = 0;
  together(world, [&] {
    require_family(codec_, codec_.deck().family().name() == "codec", "eval.codec", "codec");
    const Vocabulary units =
        units_of_recogniser(recogniser_, "eval.recogniser", static_cast<int>(codes_.sample_rate));
    const auto& config = recogniser_.options().model.as<FastConformerConfig>();
    maker_.emplace(units, config.seconds_per_frame(), 0);
    of_codec = plan_codec(codec_.options());
    of_recogniser = plan_hearing(recogniser_, frames * codes_.frame_samples);
  });
  ModelInstance& speaking = codec_.load(of_codec, world);
  hearing_ = &recogniser_.load(of_recogniser, world);
  together(world, [&] {
    coder_ = std::make_unique<CodecCoder>(speaking);
    require_codec(*coder_, codes_, codec_);
  });
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
  to_floats(logits.slice(0, frames), scores);
  TranscriptMaker::Frames best;
  maker_->add(best, scores, symbols);
  Transcript transcript;
  maker_->finish(best, transcript);
  return transcript.text;
}

}  // namespace choir
