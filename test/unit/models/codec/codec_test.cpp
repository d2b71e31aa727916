// Tests of a codec in fp64: gradients, frames that are independent of each other, codes of streams.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/philox.hpp"
#include "kernels/cpu/ref_element.hpp"
#include "src/device/cpu_device.hpp"
#include "src/models/codec/codec.hpp"
#include "src/models/codec/codec_coder.hpp"
#include "src/models/codec/evaluation.hpp"

namespace choir {
namespace {

CodecConfig small_codec() {
  CodecConfig c{.encoder_width = 12, .decoder_width = 10, .codebooks = 2, .levels = "5,3"};
  c.mel.mels = 12;
  c.complete();
  return c;
}

/// Config of a small codec with a decoder that makes sound.
CodecConfig small_speaker() {
  CodecConfig c = small_codec();
  c.head = CodecHead::istft, c.resolutions = "64,128";
  c.rows = 4, c.mel.fft = 256, c.mel.window = 200, c.mel.hop = 80;
  return c;
}

std::vector<std::int16_t> sound(std::uint64_t number, std::int64_t samples) {
  const PhiloxKey key = philox_key(number, "sound");
  std::vector<std::int16_t> pcm;
  for (std::int64_t i = 0; i < samples; ++i)
    pcm.push_back(static_cast<std::int16_t>(2000 * std::sin(0.001 * static_cast<double>(i)) *
                                            normal_at(key, static_cast<std::uint64_t>(i))));
  return pcm;
}

/// A codec whose parameters are not close to the start.
struct Coding {
  explicit Coding(const CodecConfig& c, const char* precision = "fp64", std::size_t arena = 1 << 24,
                  Recompute recompute = Recompute::none)
      : config(c), mesh(Mesh::planned(Layout(), 0, 1)) {
    config.recompute = recompute;
    instance = std::make_unique<ModelInstance>(
        ModelInstance::Options{
            .model = config, .precision = precision_of(precision), .seed = 7, .training = true},
        device, *mesh, arena);
    instance->initialise(7);
    for (Parameter& p : instance->parameters().parameters())
      for (std::int64_t i = 0; i < p.count(); ++i)
        add(p, i, 0.2 * normal_at(philox_key(3, p.name), static_cast<std::uint64_t>(i)));
    instance->publish();
  }
  static void add(Parameter& p, std::int64_t i, double by) {
    ref::store(p.master.data, p.master.dtype, i, ref::load(p.master.data, p.master.dtype, i) + by);
  }

  /// Rows of sounds by their numbers and lengths.
  ModelBatch batch(const std::vector<std::pair<std::uint64_t, std::int64_t>>& rows,
                   std::int64_t padded = 0) {
    for (const auto& [number, samples] : rows) padded = std::max(padded, samples);
    memory = std::make_unique<HostBatch>(
        config, BatchShape{.samples = std::ssize(rows), .audio_samples = padded});
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const auto pcm = sound(rows[r].first, rows[r].second);
      auto* to = static_cast<std::int16_t*>(memory->batch["audio"].data) +
                 static_cast<std::int64_t>(r) * padded;
      std::fill(std::copy(pcm.begin(), pcm.end(), to), to + padded, std::int16_t{0});
      memory->batch["audio_lengths"].as<std::int32_t>()[r] =
          static_cast<std::int32_t>(rows[r].second);
    }
    set_frame_lengths(config, memory->batch);
    return memory->batch;
  }
  std::vector<double> losses(const ModelBatch& of) {
    return values(instance->forward(Mode::evaluate, of));
  }
  std::vector<double> codes(const ModelBatch& of) {
    const Tensor out = instance->forward(Mode::generate, of);
    const auto* at = out.as<std::int32_t>();
    return {at, at + out.count()};
  }
  static std::vector<double> values(const Tensor& x) {
    std::vector<double> list;
    for (std::int64_t i = 0; i < x.count(); ++i) list.push_back(ref::load(x.data, x.dtype, i));
    return list;
  }
  /// Gradients of the sum of losses, in the order of parameters.
  std::vector<std::vector<double>> gradients(const ModelBatch& of) {
    for (Parameter& p : instance->parameters().parameters()) {
      p.gradient_live = false;
      std::fill_n(p.gradient.as<double>(), p.count(), 0.0);
    }
    Pass& pass = instance->pass();
    instance->model().begin(pass, Mode::train, of);
    instance->model().forward(pass, 0, {}, of);
    instance->model().backward(pass, 0, {}, of);
    EXPECT_EQ(pass.saved(), 0u);
    std::vector<std::vector<double>> all;
    for (const Parameter& p : instance->parameters().parameters())
      all.emplace_back(p.gradient.as<double>(), p.gradient.as<double>() + p.count());
    return all;
  }

  CodecConfig config;
  CpuDevice device;
  std::unique_ptr<Mesh> mesh;
  std::unique_ptr<ModelInstance> instance;
  std::unique_ptr<HostBatch> memory;
};

double sum(const std::vector<double>& list) {
  double all = 0;
  for (const double x : list) all += x;
  return all;
}

void check_gradients(const CodecConfig& config) {
  Coding coding(config);
  const ModelBatch batch = coding.batch({{1, 5000}, {2, 2000}});
  const auto gradients = coding.gradients(batch);
  std::size_t number = 0;
  for (Parameter& p : coding.instance->parameters().parameters()) {
    const std::vector<double>& exact = gradients[number++];
    if (p.name.starts_with("encoder")) continue;
    for (std::int64_t i = 0; i < p.count(); i += 1 + p.count() / 7) {
      constexpr double kStep = 1e-6;
      const auto loss_at = [&](double by) {
        Coding::add(p, i, by);
        coding.instance->publish();
        return sum(coding.losses(batch));
      };
      const double above = loss_at(kStep), below = loss_at(-2 * kStep);
      loss_at(kStep);
      // Differences of an absolute value are exact unless its sign changes within the step.
      EXPECT_NEAR(exact[static_cast<std::size_t>(i)], (above - below) / (2 * kStep), 2e-4)
          << p.name << " " << i;
    }
  }
}

TEST(Codec, GradientsBehindTheRoundingAreThoseOfDifferences) {
  check_gradients(small_codec());
  check_gradients(small_speaker());
}

TEST(Codec, RecomputingChangesNoBit) {
  Coding kept(small_codec());
  const auto expected = kept.gradients(kept.batch({{1, 5000}, {2, 2000}}));
  EXPECT_GT(std::fabs(expected.front().front()), 0) << "nothing passes straight through";
  for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
    Coding again(small_codec(), "fp64", 1 << 24, recompute);
    EXPECT_EQ(again.gradients(again.batch({{1, 5000}, {2, 2000}})), expected);
  }
}

// Frames of a row of three, the last of which is half silence, alone and among others.
void check_company(const CodecConfig& config, std::size_t terms) {
  Coding coding(config);
  const std::int64_t frame = coding.config.frame_samples(), samples = 2 * frame + frame / 2;
  const auto losses = coding.losses(coding.batch({{1, samples}}));
  ASSERT_EQ(losses.size(), 3 * terms);
  const auto codes = coding.codes(coding.batch({{1, samples}}));
  const ModelBatch among = coding.batch({{2, 7 * frame}, {1, samples}, {3, 10}}, 8 * frame + 17);
  const auto all = coding.losses(among);
  ASSERT_EQ(all.size(), 27 * terms);
  for (std::size_t term = 0; term < terms; ++term) {
    const double* of = all.data() + 27 * term;
    for (std::size_t t = 0; t < 9; ++t)
      EXPECT_NEAR(of[9 + t], t < 3 ? losses[3 * term + t] : 0.0, 1e-13)
          << "frame " << t << ", term " << term;
    EXPECT_GT(of[18], 0) << "a frame of which there are ten samples";
    EXPECT_EQ(of[19], 0);
  }
  const auto coded = coding.codes(among);
  for (std::size_t i = 0; i < codes.size(); ++i) EXPECT_EQ(coded[18 + i], codes[i]);
}

TEST(Codec, AFrameKnowsNothingOfItsBatchAndPadding) {
  check_company(small_codec(), 1);
}
// The sound of frames overlaps within its utterance.
TEST(Codec, AnUtteranceOfSoundKnowsNothingOfItsBatchAndPadding) {
  check_company(small_speaker(), 3);
}

// Converting a sound to spectra, as magnitudes and phases around the middles of frames, and back
// gives the sound again.
TEST(WaveformHead, SpectraOfASoundComeBackAsTheSound) {
  Coding coding(small_speaker());
  const CodecConfig& c = coding.config;
  const std::int64_t fft = c.mel.fft, hop = c.mel.hop, bins = fft / 2 + 1, units = 6;
  const std::int64_t rows = units * c.rows, samples = rows * hop, lead = (fft - hop) / 2;
  const PhiloxKey key = philox_key(4, "wave");
  const auto wave_at = [&](std::int64_t s) {
    return s < 0 || s >= samples ? 0.0 : 0.1 * normal_at(key, static_cast<std::uint64_t>(s));
  };
  const Stream stream(coding.device);
  std::vector<std::byte> tables(WaveformHead(c).table_bytes(DType::f64));
  WaveformHead head(c);
  head.make_tables(stream, DType::f64, tables.data());
  Pass& pass = coding.instance->pass();
  coding.instance->model().begin(pass, Mode::generate, coding.batch({{1, samples}}));
  const Tensor polar = pass.allocate({units, c.outputs()}, "magnitudes and phases");
  const double gain = c.mel.deviation / 2;
  const double offset = (c.mel.mean + std::log(16000.0 / static_cast<double>(fft))) / 2;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t k = 0; k < bins; ++k) {
      double re = 0, im = 0;
      for (std::int64_t n = 0; n < fft; ++n) {
        const double sine =
            std::sin(M_PI * (static_cast<double>(n) + 0.5) / static_cast<double>(fft));
        const double x = sine * sine * wave_at(r * hop - lead + n);
        const double angle =
            2 * M_PI * static_cast<double>(k * (n - fft / 2)) / static_cast<double>(fft);
        re += x * std::cos(angle), im -= x * std::sin(angle);
      }
      polar.as<double>()[r * 2 * bins + k] = (std::log(std::hypot(re, im)) - offset) / gain;
      polar.as<double>()[r * 2 * bins + bins + k] = std::atan2(im, re);
    }
  const Tensor frames = head.frames(pass, polar);
  ASSERT_EQ(frames.count(), rows * fft);
  // Samples that are covered by all frames that can reach them.
  for (std::int64_t s = fft; s < samples - fft; ++s) {
    double sum = 0;
    for (std::int64_t r = 0; r < rows; ++r)
      if (const std::int64_t n = s - r * hop + lead; n >= 0 && n < fft)
        sum += frames.as<double>()[r * fft + n];
    ASSERT_NEAR(sum, wave_at(s), 1e-13) << s;
  }
}

TEST(CodecCoder, CodesOfAStreamAreThoseOfTheWhole) {
  for (const char* precision : {"fp64", "fp32"}) {
    CodecConfig config = small_codec();
    config.encoder_width = 192, config.levels = "8,5,5,5";
    config.complete();
    Coding coding(config, precision);
    CodecCoder coder(*coding.instance);
    const std::int64_t frame = coder.frame_samples();
    EXPECT_EQ(frame, 1280);
    EXPECT_EQ(coder.samples_ahead(), 40);
    const std::int64_t samples = 70 * frame + 3;
    const auto audio = sound(5, samples);
    const auto whole = coder.encode(audio);
    ASSERT_EQ(std::ssize(whole), 71 * coder.codebooks());
    // One pass over all of it gives the same result.
    const auto direct = coding.codes(coding.batch({{5, samples}}));
    for (std::size_t i = 0; i < whole.size(); ++i) ASSERT_EQ(whole[i], direct[i]) << i;
    for (const std::size_t part : {std::size_t{1}, std::size_t{999}, std::size_t{1280 * 40}}) {
      // A shorter sound, one sample per call: every call returns only the complete frames.
      const std::span all = std::span(audio).first(part == 1 ? 4000 : audio.size());
      CodecCoder::Stream stream(coder);
      std::vector<std::int32_t> codes;
      std::int64_t heard = 0;
      for (std::size_t at = 0; at < all.size(); at += part) {
        const auto piece = all.subspan(at, std::min(part, all.size() - at));
        heard += std::ssize(piece);
        const auto made = stream.add(piece);
        codes.insert(codes.end(), made.begin(), made.end());
        const std::int64_t complete = std::max<std::int64_t>(0, (heard - 40) / frame);
        ASSERT_EQ(std::ssize(codes), complete * coder.codebooks());
      }
      const auto rest = stream.finish();
      codes.insert(codes.end(), rest.begin(), rest.end());
      const auto expected = part == 1 ? coder.encode(all) : whole;
      EXPECT_EQ(codes, expected) << precision << " by " << part;
    }
    EXPECT_TRUE(coder.encode({}).empty());
  }
}

// The loss of a frame is the distance between the decoded and the original frame.
TEST(CodecCoder, DecodesWhatTrainingCompares) {
  Coding coding(small_codec());
  CodecCoder coder(*coding.instance);
  const std::int64_t samples = 40 * coder.frame_samples();
  const auto audio = sound(6, samples);
  const auto codes = coder.encode(audio);
  const auto features = coder.decode(codes, 40);
  ASSERT_EQ(std::ssize(features), 40 * 8 * coder.mels());
  // Silence decoded frame by frame: equal codes give equal rows at every position.
  const auto one = coder.decode(std::span(codes).first(2), 1);
  for (std::size_t i = 0; i < one.size(); ++i) ASSERT_EQ(one[i], features[i]);
  const ModelBatch batch = coding.batch({{6, samples}});
  const auto losses = coding.losses(batch);
  // Features of the audio, computed by the operation alone.
  const CpuDevice& device = coding.device;
  const Stream stream(const_cast<CpuDevice&>(device));
  std::vector<double> tables(static_cast<std::size_t>(ops::mel_table_bytes(coder.mel())) / 8);
  const TensorView table{tables.data(), DType::u8, {ops::mel_table_bytes(coder.mel())}};
  ops::MelOptions raw = coder.mel();
  raw.mean = 0, raw.deviation = 1;
  ops::make_mel_tables(stream, raw, table);
  std::vector<double> heard(features.size());
  ops::log_mel(stream, {.options = raw,
                        .audio = batch["audio"],
                        .audio_lengths = batch["audio_lengths"].as<std::int32_t>(),
                        .lengths = batch["frame_lengths"].as<std::int32_t>(),
                        .tables = table,
                        .out = {heard.data(), DType::f64, {1, 320, coder.mels()}}});
  const std::size_t width = features.size() / 40;
  for (std::size_t t = 0; t < 40; ++t) {
    double distance = 0;
    for (std::size_t c = t * width; c < (t + 1) * width; ++c)
      distance += std::fabs(static_cast<double>(features[c]) - heard[c]);
    EXPECT_NEAR(distance / static_cast<double>(width), losses[t], 1e-5) << t;
  }
}

// Frames of sound overlap to the sound that training compared, and the samples are the same in
// whatever portions codes arrive.
TEST(CodeSpeaker, SaysWhatTrainingCompared) {
  Coding coding(small_speaker());
  CodecCoder coder(*coding.instance);
  ASSERT_TRUE(coder.makes_sound());
  constexpr std::int64_t kFrames = 70;
  const auto audio = sound(6, kFrames * coder.frame_samples());
  const auto codes = coder.encode(audio);
  const auto whole = speak_codes(coder, codes, kFrames);
  ASSERT_EQ(std::ssize(whole), kFrames * coder.frame_samples());
  for (const std::int64_t part : {1, 3, 40}) {
    CodeSpeaker speaker(coder);
    EXPECT_EQ(speaker.delay(), 88) << "half of what a frame has beyond its hop";
    std::vector<std::int16_t> said;
    for (std::int64_t at = 0; at < kFrames; at += part) {
      const std::int64_t here = std::min(part, kFrames - at);
      const auto more = speaker.push(std::span(codes).subspan(static_cast<std::size_t>(2 * at),
                                                              static_cast<std::size_t>(2 * here)),
                                     here);
      said.insert(said.end(), more.begin(), more.end());
      ASSERT_EQ(std::ssize(said), (at + here) * coder.frame_samples() - 88);
    }
    const auto rest = speaker.finish();
    said.insert(said.end(), rest.begin(), rest.end());
    EXPECT_EQ(said, whole) << part;
  }
  const auto losses = coding.losses(coding.batch({{6, kFrames * coder.frame_samples()}}));
  double mel = 0;
  for (std::size_t t = 0; t < kFrames; ++t) mel += losses[t];
  const MelDistance distance = sound_distance(coder, audio, whole);
  // 16 bits change powers by 1e-9, which is a thousandth of a logarithm because of the guard of
  // 1e-6.
  EXPECT_NEAR(distance.sum / static_cast<double>(distance.features), mel / kFrames, 1e-3);
}

TEST(CodecCoder, RefusesWhatItCannotCode) {
  Coding coding(small_codec());
  CodecCoder coder(*coding.instance);
  const std::vector<std::int32_t> good(6, 14), bad{0, 0, 0, 15, 0, 0};
  EXPECT_EQ(std::ssize(coder.decode(good, 3)), 3 * 8 * 12);
  EXPECT_THROW(coder.decode(good, 2), DataError);
  try {
    coder.decode(bad, 3);
    FAIL() << "a code beyond the codebook";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("frame 1 has code 15, of 15"), std::string::npos);
  }
  CodecCoder::Stream stream(coder);
  stream.finish();
  EXPECT_THROW(stream.add(sound(1, 10)), Error);
  Coding short_numbers(small_codec(), "bf16-mixed");
  EXPECT_THROW(CodecCoder{*short_numbers.instance}, DeckError);
}

TEST(CodecCoder, HashIsOfParametersAndConfiguration) {
  Coding coding(small_codec());
  CodecCoder coder(*coding.instance);
  const std::uint64_t hash = coder.hash();
  EXPECT_EQ(hash, coder.hash());
  Coding same(small_codec());
  EXPECT_EQ(CodecCoder(*same.instance).hash(), hash);
  Coding::add(same.instance->parameters().parameters().back(), 0, 0.01);
  same.instance->publish();
  EXPECT_NE(CodecCoder(*same.instance).hash(), hash);
  CodecConfig louder = small_codec();
  louder.mel.guard = 1e-5;
  Coding other(louder);
  EXPECT_NE(CodecCoder(*other.instance).hash(), hash);
  CodecConfig speaking = small_codec();
  speaking.head = CodecHead::istft;
  Coding speaker(speaking);
  EXPECT_NE(CodecCoder(*speaker.instance).hash(), hash);
}

TEST(CodecCoder, ItsPlanIsEnough) {
  const CodecConfig config = small_codec();
  const std::size_t arena = plan_codec({.model = config, .precision = precision_of("fp32")});
  Coding coding(config, "fp32", arena);
  CodecCoder coder(*coding.instance);
  EXPECT_EQ(std::ssize(coder.decode(coder.encode(sound(1, 100000)), 79)), 79 * 96);
}

TEST(CodeCounts, EntropyAndShareOfCodes) {
  CodeCounts counts(2, 4);
  for (const std::int32_t code : {0, 1, 2, 3, 0, 1, 2, 3})
    counts.add(std::vector<std::int32_t>{code, code < 2 ? 0 : 3});
  EXPECT_DOUBLE_EQ(counts.entropy(0), 2);
  EXPECT_DOUBLE_EQ(counts.entropy(1), 1);
  EXPECT_DOUBLE_EQ(counts.used(0), 1);
  EXPECT_DOUBLE_EQ(counts.used(1), 0.5);
  EXPECT_DOUBLE_EQ(counts.entropy(), 1.5);
  EXPECT_DOUBLE_EQ(CodeCounts(4, counts.counts()).entropy(), 1.5);
}

}  // namespace
}  // namespace choir
