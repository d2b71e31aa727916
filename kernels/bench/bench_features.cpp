// Benches of speech features, against their references. Rates count the bytes that must move, as
// everywhere; log_mel is bound by arithmetic (kernels/features/features.hpp), so its share of the
// ceiling is small.
#include <algorithm>

#include "kernels/bench/op_bench.hpp"
#include "kernels/features/features.hpp"

namespace choir::ops {
namespace {

constexpr PhiloxKey kKey{1, 2};

/// A number of frames equal to the rows of the bench, in utterances of ten seconds.
struct FeatureShape {
  std::int64_t frames, batch, mels = MelOptions{}.mels;
  explicit FeatureShape(const BenchShape& shape)
      : frames(std::min<std::int64_t>(shape.rows, 1000)), batch(shape.rows / frames) {}
  Shape dims() const { return {batch, frames, mels}; }
  std::int64_t elements() const { return batch * frames * mels; }
  std::int64_t of_one() const { return frames * mels; }
};

/// Values of which every utterance of the batch has one, on the host and, once for all sets, on the
/// device.
template <class T>
class PerUtterance {
 public:
  PerUtterance(Device& device, std::vector<T> values)
      : host(std::move(values)), buffer_(device, host.size() * sizeof(T)) {
    device.copy_from_host(buffer_.data(), host.data(), host.size() * sizeof(T));
  }
  const T* data() const { return static_cast<const T*>(buffer_.data()); }
  const std::vector<T> host;

 private:
  Buffer buffer_;
};
PerUtterance<std::int32_t> all_of(Device& device, std::int64_t batch, std::int64_t value) {
  return {device, std::vector<std::int32_t>(static_cast<std::size_t>(batch),
                                            static_cast<std::int32_t>(value))};
}

/// White noise with an eighth of the largest amplitude.
std::vector<std::int16_t> noise(std::int64_t samples) {
  std::vector<std::int16_t> audio(static_cast<std::size_t>(samples));
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < samples; i += 4) {
    const PhiloxBlock words = philox(kKey, {static_cast<std::uint32_t>(i / 4), 0, 0, 0});
    for (std::int64_t k = i; k < std::min(i + 4, samples); ++k)
      audio[static_cast<std::size_t>(k)] = static_cast<std::int16_t>(
          static_cast<std::int32_t>(words[static_cast<std::size_t>(k - i)]) >> 19);
  }
  return audio;
}

/// Frames [first, first + count) of one utterance, computed from the samples from two frames
/// before: a window reaches no further. Only the first sample of an utterance is emphasised
/// differently.
std::vector<double> exact_frames(const MelOptions& options, std::int16_t* audio,
                                 std::int64_t samples, std::int64_t first, std::int64_t count) {
  const std::int64_t begin = std::max<std::int64_t>(0, first - 2), skipped = begin * options.hop;
  const auto rest = static_cast<std::int32_t>(samples - skipped),
             frames = static_cast<std::int32_t>(first - begin + count);
  std::vector<double> out(static_cast<std::size_t>(frames * options.mels));
  ref::log_mel({.options = options,
                .audio = {audio + skipped, DType::u16, {1, rest}},
                .audio_lengths = &rest,
                .lengths = &frames,
                .out = view_of(out, {1, frames, options.mels})});
  out.erase(out.begin(), out.begin() + (first - begin) * options.mels);
  return out;
}

void log_mels(OpBench& bench) {
  const FeatureShape of(bench.shape);
  const MelOptions options;
  const std::int64_t samples = of.frames * options.hop;
  BenchOperands data = bench.operands(static_cast<double>(of.elements() + of.batch * samples / 2));
  std::vector<std::int16_t> wave = noise(of.batch * samples);
  const Operand audio = data.empty(DType::u16, {of.batch, samples}),
                tables = data.empty(DType::u8, {mel_table_bytes(options)}),
                out = data.empty(bench.dtype, of.dims());
  for (std::int64_t s = 0; s < data.sets(); ++s) {
    data.device().copy_from_host(audio[s].data, wave.data(), audio[s].bytes());
    make_mel_tables(bench.stream, options, tables[s]);
  }
  const auto lengths = all_of(data.device(), of.batch, samples),
             frames = all_of(data.device(), of.batch, of.frames);
  const auto call = [&](const Stream& s, std::int64_t i) {
    log_mel(s, {.options = options,
                .audio = audio[i],
                .audio_lengths = lengths.data(),
                .lengths = frames.data(),
                .tables = tables[i],
                .out = out[i]});
  };
  call(bench.stream, 0);
  Agreement agreement;
  const std::int64_t count = std::min<std::int64_t>(of.frames, 24);
  for (const std::int64_t b : {std::int64_t{0}, of.batch - 1})
    for (const std::int64_t first : {std::int64_t{0}, of.frames - count})
      agreement.add(data.read(out[0], b * of.of_one() + first * of.mels, count * of.mels),
                    exact_frames(options, wave.data() + b * samples, samples, first, count),
                    allowed_error(bench.dtype, static_cast<double>(options.fft)));
  bench.row("log_mel", of.dims(), agreement, call);
}

void normalisations(OpBench& bench) {
  const FeatureShape of(bench.shape);
  BenchOperands data = bench.operands(static_cast<double>(of.elements()));
  const Operand x = data.normal(bench.dtype, of.dims());
  const auto frames = all_of(data.device(), of.batch, of.frames);
  const auto call = [&](const Stream& s, std::int64_t i) {
    normalise_features(s, x[i], frames.data());
  };
  call(bench.stream, 0);
  Agreement agreement;
  for (const std::int64_t b : {std::int64_t{0}, of.batch - 1}) {
    std::vector<double> exact = x.exact(b * of.of_one(), of.of_one());
    ref::normalise_features(view_of(exact, {1, of.frames, of.mels}), frames.host.data());
    agreement.add(data.read(x[0], b * of.of_one(), of.of_one()), exact,
                  allowed_error(bench.dtype, static_cast<double>(of.frames)));
  }
  bench.row("normalise_features", of.dims(), agreement, call);
}

void augmentations(OpBench& bench) {
  const FeatureShape of(bench.shape);
  BenchOperands data = bench.operands(static_cast<double>(of.elements()));
  const Operand x = data.normal(bench.dtype, of.dims());
  const auto frames = all_of(data.device(), of.batch, of.frames);
  std::vector<std::int64_t> numbers;
  for (std::int64_t b = 0; b < of.batch; ++b) numbers.push_back(b);
  const PerUtterance<std::int64_t> ids(data.device(), numbers);
  const SpecAugment options;
  const auto call = [&](const Stream& s, std::int64_t i) {
    spec_augment(s, options, x[i], frames.data(), ids.data(), kKey);
  };
  call(bench.stream, 0);
  Agreement agreement;
  for (const std::int64_t b : {std::int64_t{0}, of.batch - 1}) {
    std::vector<double> exact = x.exact(b * of.of_one(), of.of_one());
    ref::spec_augment(options, view_of(exact, {1, of.frames, of.mels}), frames.host.data(),
                      ids.host.data() + b, kKey);
    agreement.add(data.read(x[0], b * of.of_one(), of.of_one()), exact, 0);  // nothing is rounded
  }
  bench.row("spec_augment", of.dims(), agreement, call);
}

}  // namespace

void bench_features(OpBench& bench) {
  if (bench.shape.speech.samples == 0) return;
  if (bench.dtype != DType::f32) return;  // features are always f32
  log_mels(bench);
  normalisations(bench);
  augmentations(bench);
}

}  // namespace choir::ops
