#include "src/models/codec/codec_coder.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "choir/core/error.hpp"
#include "kernels/cpu/ref_element.hpp"
#include "kernels/features/features.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/text.hpp"
#include "src/device/cpu_device.hpp"
#include "src/models/codec/codec.hpp"
#include "src/run/null_instance.hpp"
#include "src/run/run_setup.hpp"

namespace choir {
namespace {

/// Frames of a pass. All passes have one shape, so that the same kernels compute a frame wherever
/// it is in a recording.
constexpr std::int64_t kPassFrames = 32;

std::string text_of(const CodecConfig& c) {
  return fmt::format("codec {} {} {} {} {} {} {} {} {} {} {} {} {}{}", c.rows, c.codebooks,
                     c.levels, c.mel.sample_rate, c.mel.window, c.mel.hop, c.mel.fft, c.mel.mels,
                     c.mel.high, c.mel.preemphasis, c.mel.guard, c.mel.mean, c.mel.deviation,
                     c.makes_sound() ? " istft" : "");
}

std::uint64_t hash_of(const CodecConfig& config, ModelInstance& instance) {
  std::uint64_t hash = fnv1a(text_of(config));
  std::vector<std::byte> values;
  for (const Parameter& p : instance.parameters().parameters()) {
    values.resize(p.value.bytes());
    instance.device().copy_to_host(values.data(), p.value.data, values.size());
    hash = fnv1a(p.name, hash);
    for (std::int64_t i = 0; i < p.count(); ++i) {
      const auto value = static_cast<float>(ref::load(values.data(), p.value.dtype, i));
      hash = fnv1a({reinterpret_cast<const char*>(&value), sizeof value}, hash);
    }
  }
  return hash;
}

void require_whole(const ModelInstance& instance) {
  const ModelInstance::Options& options = instance.options();
  const auto* family = &options.model.family();
  if (family->name() != "codec")
    throw DeckError(fmt::format("a model of model.type = \"{}\" has no codes", family->name()),
                    "use a checkpoint of model.type = \"codec\"");
  const Layout& layout = instance.mesh().layout();
  if (layout.size(Axis::tensor) > 1 || layout.size(Axis::pipeline) > 1 ||
      instance.storage().sharding().values_sharded())
    throw DeckError("a codec that is divided among ranks cannot code recordings",
                    "use it with parallel.tensor, parallel.pipeline and parallel.zero of 1, 1, 0");
  if (size_of(options.precision.compute) < 4)
    throw DeckError(
        "codes are computed in fp32 or fp64: 16 bits would round numbers to other levels",
        "use --precision fp32");
}

}  // namespace

struct CodecCoder::Parts {
  explicit Parts(ModelInstance& of)
      : instance(of),
        config(of.options().model.as<CodecConfig>()),
        border((config.mel.window / 2 + config.frame_samples() - 1) / config.frame_samples()),
        audio(config,
              {.samples = 1, .audio_samples = (kPassFrames + 2 * border) * config.frame_samples()}),
        codes(static_cast<std::size_t>(kPassFrames * config.codebooks)) {}

  bool computes() const { return instance.device().kind() != DeviceKind::null; }
  /// Samples of the border on one side of a pass.
  std::int64_t border_samples() const { return border * config.frame_samples(); }

  ModelInstance& instance;
  CodecConfig config;
  std::int64_t border;  ///< frames on both sides of a pass that are read but whose codes
                        ///< are discarded
  HostBatch audio;
  std::vector<std::int32_t> codes;
  std::vector<std::byte> result;
};

CodecCoder::CodecCoder(ModelInstance& instance) {
  require_whole(instance);
  parts_ = std::make_unique<Parts>(instance);
}
CodecCoder::~CodecCoder() = default;

const ops::MelOptions& CodecCoder::mel() const {
  return parts_->config.mel;
}
int CodecCoder::sample_rate() const {
  return static_cast<int>(mel().sample_rate);
}
std::int64_t CodecCoder::frame_samples() const {
  return parts_->config.frame_samples();
}
std::int64_t CodecCoder::mels() const {
  return mel().mels;
}
std::int64_t CodecCoder::rows_per_frame() const {
  return parts_->config.rows;
}
std::int64_t CodecCoder::codebooks() const {
  return parts_->config.codebooks;
}
std::int64_t CodecCoder::codes_per_book() const {
  return parts_->config.vocab_size;
}
// The centre of the last row of a frame is one hop before its end.
std::int64_t CodecCoder::samples_ahead() const {
  return std::max<std::int64_t>(0, (mel().window + 1) / 2 - mel().hop);
}
bool CodecCoder::makes_sound() const {
  return parts_->config.makes_sound();
}
std::uint64_t CodecCoder::hash() const {
  return hash_of(parts_->config, parts_->instance);
}

std::vector<std::int32_t> CodecCoder::encode(std::span<const std::int16_t> audio) {
  Stream stream(*this);
  std::vector<std::int32_t> codes = stream.add(audio);
  const std::vector<std::int32_t> rest = stream.finish();
  codes.insert(codes.end(), rest.begin(), rest.end());
  return codes;
}

std::vector<float> CodecCoder::decode(std::span<const std::int32_t> codes, std::int64_t frames) {
  const CodecConfig& c = parts_->config;
  if (frames < 0 || std::ssize(codes) != frames * c.codebooks)
    throw DataError(
        fmt::format("{} codes are not {} frames of {}", codes.size(), frames, c.codebooks),
        "give every frame a code of each codebook");
  for (std::size_t i = 0; i < codes.size(); ++i)
    if (codes[i] < 0 || codes[i] >= c.vocab_size)
      throw DataError(
          fmt::format("frame {} has code {}, of {}", static_cast<std::int64_t>(i) / c.codebooks,
                      codes[i], c.vocab_size),
          "the codes belong to another codec, or control codes were not removed");
  const std::int64_t width = c.makes_sound() ? c.rows * c.mel.fft : c.features();
  std::vector<float> decoded(static_cast<std::size_t>(frames * width));
  const auto mean = static_cast<float>(c.makes_sound() ? 0 : c.mel.mean);
  const auto deviation = static_cast<float>(c.makes_sound() ? 1 : c.mel.deviation);
  for (std::int64_t first = 0; first < frames; first += kPassFrames) {
    const std::int64_t here = std::min(kPassFrames, frames - first);
    std::ranges::fill(parts_->codes, 0);
    std::copy_n(codes.begin() + first * c.codebooks, here * c.codebooks, parts_->codes.begin());
    const Tensor rows = parts_->instance.forward(
        Mode::generate,
        code_fields(
            {parts_->codes.data(), DType::i32, {static_cast<std::int64_t>(parts_->codes.size())}},
            kPassFrames));
    if (!parts_->computes()) continue;
    parts_->result.resize(rows.bytes());
    parts_->instance.device().copy_to_host(parts_->result.data(), rows.data, rows.bytes());
    for (std::int64_t i = 0; i < here * width; ++i)
      decoded[static_cast<std::size_t>(first * width + i)] =
          mean + deviation * static_cast<float>(ref::load(parts_->result.data(), rows.dtype, i));
  }
  return decoded;
}

// Silence precedes the recording.
CodecCoder::Stream::Stream(CodecCoder& coder)
    : coder_(&coder), held_(static_cast<std::size_t>(coder.parts_->border_samples())) {}

std::vector<std::int32_t> CodecCoder::Stream::add(std::span<const std::int16_t> audio) {
  CHOIR_CHECK(!finished_, "{} samples behind the end of a stream", audio.size());
  const std::int64_t frame = coder_->frame_samples(), border = coder_->parts_->border_samples();
  std::vector<std::int32_t> codes;
  while (!audio.empty()) {
    const std::size_t part = std::min(audio.size(), static_cast<std::size_t>(kPassFrames * frame));
    held_.insert(held_.end(), audio.begin(), audio.begin() + static_cast<std::ptrdiff_t>(part));
    audio = audio.subspan(part);
    for (;;) {
      const std::int64_t ready = (std::ssize(held_) - border - coder_->samples_ahead()) / frame;
      if (ready <= 0) break;
      code(std::min(ready, kPassFrames), codes);
    }
  }
  return codes;
}

std::vector<std::int32_t> CodecCoder::Stream::finish() {
  CHOIR_CHECK(!finished_, "a stream that ends twice");
  finished_ = true;
  const std::int64_t frame = coder_->frame_samples(), border = coder_->parts_->border_samples();
  std::vector<std::int32_t> codes;
  for (;;) {
    const std::int64_t left = (std::ssize(held_) - border + frame - 1) / frame;
    if (left <= 0) return codes;
    code(std::min(left, kPassFrames), codes);
  }
}

/// Appends the codes of the next frames. Silence follows the samples in `held_`.
void CodecCoder::Stream::code(std::int64_t frames, std::vector<std::int32_t>& to) {
  Parts& parts = *coder_->parts_;
  const ModelBatch& batch = parts.audio.batch;
  auto* audio = static_cast<std::int16_t*>(batch["audio"].data);
  const std::int64_t room = batch["audio"].count();
  const std::int64_t here = std::min<std::int64_t>(room, std::ssize(held_));
  std::fill(std::copy_n(held_.begin(), here, audio), audio + room, std::int16_t{0});
  const Tensor codes = parts.instance.forward(Mode::generate, batch);
  const std::int64_t books = parts.config.codebooks;
  const auto begin = static_cast<std::ptrdiff_t>(to.size());
  to.resize(to.size() + static_cast<std::size_t>(frames * books));
  if (parts.computes()) {
    parts.result.resize(codes.bytes());
    parts.instance.device().copy_to_host(parts.result.data(), codes.data, codes.bytes());
    const auto* all = reinterpret_cast<const std::int32_t*>(parts.result.data());
    std::copy_n(all + parts.border * books, frames * books, to.begin() + begin);
  }
  const std::int64_t gone =
      std::min<std::int64_t>(frames * parts.config.frame_samples(), std::ssize(held_));
  held_.erase(held_.begin(), held_.begin() + gone);
}

std::size_t plan_codec(const ModelInstance::Options& options, const Device* target) {
  NullInstance instance(options, Layout(1, 1, 1, 1), 0, target);
  CodecCoder coder(*instance);
  const std::vector<std::int16_t> silence(static_cast<std::size_t>(coder.frame_samples()));
  coder.decode(coder.encode(silence), 1);
  return instance->arena().peak();
}

std::vector<std::uint16_t> stored_codes(std::span<const std::int32_t> codes) {
  std::vector<std::uint16_t> stored(codes.size());
  std::transform(codes.begin(), codes.end(), stored.begin(), [](std::int32_t code) {
    CHOIR_CHECK(code >= 0 && code <= 0xffff, "code {} of a file of codes", code);
    return static_cast<std::uint16_t>(code);
  });
  return stored;
}

CodecDescription describe(CodecCoder& coder) {
  constexpr std::int64_t kFrames = 3;  // one with zeros on both sides
  const std::vector<std::int16_t> zeros(static_cast<std::size_t>(kFrames * coder.frame_samples()));
  const std::vector<std::uint16_t> codes = stored_codes(coder.encode(zeros));
  const auto second = codes.begin() + coder.codebooks();
  return {.hash = coder.hash(),
          .sample_rate = coder.sample_rate(),
          .frame_samples = coder.frame_samples(),
          .codebooks = coder.codebooks(),
          .codes_per_book = coder.codes_per_book(),
          .silence = {second, second + coder.codebooks()}};
}

DecodedSound sound_of(const CodecCoder& coder, std::int64_t look_ahead) {
  const ops::MelOptions& mel = coder.mel();
  if (coder.makes_sound()) return OverlapAdd(mel.fft, mel.hop, (mel.fft - mel.hop) / 2);
  VocoderOptions options;
  options.mel = mel;
  options.mel.mean = 0, options.mel.deviation = 1;  // decode() undoes them
  options.block = coder.rows_per_frame();
  options.look_ahead = look_ahead;
  return Vocoder(options);
}

CodeSpeaker::CodeSpeaker(CodecCoder& coder) : coder_(coder), sound_(sound_of(coder)) {}

std::vector<std::int16_t> CodeSpeaker::push(std::span<const std::int32_t> codes,
                                            std::int64_t frames) {
  const std::vector<float> decoded = coder_.decode(codes, frames);
  return std::visit([&](auto& sound) { return sound.push(decoded); }, sound_);
}
std::vector<std::int16_t> CodeSpeaker::finish() {
  return std::visit([](auto& sound) { return sound.finish(); }, sound_);
}
std::int64_t CodeSpeaker::delay() const {
  return std::visit([](const auto& sound) { return sound.delay(); }, sound_);
}

std::vector<std::int16_t> speak_codes(CodecCoder& coder, std::span<const std::int32_t> codes,
                                      std::int64_t frames) {
  // A minute at a time: features take fifty times the memory of their codes.
  constexpr std::int64_t kFrames = 750;
  DecodedSound decoded = sound_of(coder, kLookAheadOfRecordings);
  std::vector<std::int16_t> sound;
  const auto append = [&](const std::vector<std::int16_t>& more) {
    sound.insert(sound.end(), more.begin(), more.end());
  };
  for (std::int64_t first = 0; first < frames; first += kFrames) {
    const std::int64_t here = std::min(kFrames, frames - first);
    const auto part = codes.subspan(static_cast<std::size_t>(first * coder.codebooks()),
                                    static_cast<std::size_t>(here * coder.codebooks()));
    const std::vector<float> rows = coder.decode(part, here);
    append(std::visit([&](auto& to) { return to.push(rows); }, decoded));
  }
  append(std::visit([](auto& to) { return to.finish(); }, decoded));
  return sound;
}

namespace {

/// ln of the band powers, [rows, mels] of whole frames, as the codec computes them.
std::vector<float> features_of(const ops::MelOptions& mel, std::span<const std::int16_t> audio,
                               std::int64_t rows) {
  CpuDevice device;
  const Stream stream(device);
  ops::MelOptions options = mel;
  options.mean = 0, options.deviation = 1;
  std::vector<std::byte> tables(static_cast<std::size_t>(ops::mel_table_bytes(options)));
  const TensorView table{tables.data(), DType::u8, {std::ssize(tables)}};
  ops::make_mel_tables(stream, options, table);
  std::vector<float> features(static_cast<std::size_t>(rows * options.mels));
  auto samples = static_cast<std::int32_t>(audio.size()), frames = static_cast<std::int32_t>(rows);
  // The op only reads it.
  void* const bits = const_cast<std::int16_t*>(audio.data());
  ops::log_mel(stream, {.options = options,
                        .audio = {bits, DType::u16, {1, std::ssize(audio)}},
                        .audio_lengths = &samples,
                        .lengths = &frames,
                        .tables = table,
                        .out = {features.data(), DType::f32, {1, rows, options.mels}}});
  stream.synchronize();
  return features;
}

MelDistance distance_of(const std::vector<float>& was, const std::vector<float>& now) {
  MelDistance distance{.features = std::ssize(was)};
  for (std::size_t i = 0; i < was.size(); ++i)
    distance.sum += std::abs(static_cast<double>(was[i]) - static_cast<double>(now[i]));
  return distance;
}

}  // namespace

MelDistance mel_distance(CodecCoder& coder, std::span<const std::int16_t> audio,
                         std::span<const std::int32_t> codes) {
  const std::int64_t frames = std::ssize(codes) / coder.codebooks();
  CHOIR_CHECK(frames * coder.frame_samples() >= std::ssize(audio), "{} frames for {} samples",
              frames, audio.size());
  CHOIR_CHECK(!coder.makes_sound(), "features of a codec that makes sound");
  return distance_of(features_of(coder.mel(), audio, frames * coder.rows_per_frame()),
                     coder.decode(codes, frames));
}

MelDistance sound_distance(const CodecCoder& coder, std::span<const std::int16_t> audio,
                           std::span<const std::int16_t> sound) {
  const std::int64_t rows = std::ssize(sound) / coder.mel().hop;
  return distance_of(features_of(coder.mel(), audio, rows), features_of(coder.mel(), sound, rows));
}

double MelDistance::decibels() const {
  const double nepers = features > 0 ? sum / static_cast<double>(features) : 0;
  return 10 / std::log(10.0) * nepers;
}

CodecRun::CodecRun(MpiSession& session, const CodecRunRequest& request) {
  place_.mesh = inference_mesh(session, 1);
  choose_threads(place_.mesh->node());
  // The layout of the training does not apply to inference.
  loaded_ = open_model(
      request.families, request.checkpoint, request.precision, *place_.mesh,
      with_ema({"device=" + request.device, "parallel.tensor=1", "parallel.pipeline=1",
                "parallel.virtual_stages=1", "parallel.schedule=1f1b", "parallel.context=1",
                "parallel.data=auto", "parallel.sequence=false", "parallel.zero=0"},
               request.ema));
  std::size_t arena = 0;
  together(world(), [&] { arena = plan_codec(inference_options(loaded_)); });
  open_device(place_, loaded_.deck);
  make_instance(loaded_, arena, place_);
  together(world(), [&] { coder_ = std::make_unique<CodecCoder>(*loaded_.instance); });
}

}  // namespace choir
