// Log-mel spectra on the GPU, one warp per frame (the transform is described in
// kernels/features/features.hpp). A block stages the samples of its frames once, converted and
// emphasised, in shared memory, because frames overlap by more than half. A warp then keeps its
// frame in shared memory through the passes. f64 is cheaper than pairs of f32 (20 operations for
// one): data-centre GPUs have half the rate of f32, so the 13k FLOP of a frame cost as much as 26k
// in f32. The floor is not the 2 hop + 4 F bytes per frame (640: 5 G frames/s at 3.3 TB/s), but
// log4(N/2) passes of 16 N bytes through shared memory: about 600 clocks of a multiprocessor per
// frame (arithmetic: 200), 350 M frames/s on an H100. An hour of audio (360k frames) then takes
// about 1 ms. On GPUs whose f64 rate is a 64th, arithmetic is the floor: 10 M frames/s, which is
// still 28 hours of audio per second.

#include "kernels/cuda/access.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/features/dither.hpp"
#include "kernels/features/features.hpp"

namespace choir::cuda {

/// Frames of a block: as many as fit into 99 KiB of shared memory, which every GPU has, at the
/// widest hop.
template <int kFft>
constexpr int kMelFrames = kFft > 512 ? 4 : 8;
template <int kFft>
constexpr int kMelThreads = kMelFrames<kFft>* kWarp;
/// Maximum number of blocks of one launch.
constexpr std::int64_t kMostBlocks = (std::int64_t{1} << 31) - 1;

struct LogMelArguments {
  const std::int16_t* audio;          ///< [B, samples]
  const std::int32_t* audio_lengths;  ///< [B]
  const std::int32_t* lengths;        ///< [B]
  const std::int64_t* sample_ids;     ///< [B], or nullptr without dither
  const double* tables;
  float* out;  ///< [B, frames, mels]
  std::int64_t samples, frames;
  unsigned groups;  ///< blocks per utterance
  int hop, mels, lead;
  int window, bands, weights;  ///< offsets of MelTableLayout; the roots follow the window
  double preemphasis, dither, guard;
  float mean, part;  ///< inverse of deviation
  PhiloxKey key;
};

/// Index of a complex number of one frame. Real and imaginary parts are separate, and three words
/// are skipped after every 16, so that the strides of the passes use different banks: with 16 words
/// of half a warp at a time, 1.25 to 1.45 accesses for one without conflicts.
__host__ __device__ constexpr int mel_slot(int i) {
  return i + i / 16 * 3;
}
template <int kHalf>
constexpr int kMelFrameWords = 2 * mel_slot(kHalf);

/// Doubles of dynamic shared memory: staged samples, then the frames. The words of the frames also
/// hold the samples before they are emphasised: with n frames (n - 1) hop + window + 4 <= n fft + 4
/// < n 19/16 fft.
template <int kFft>
std::size_t mel_shared_words(std::int64_t staged) {
  return static_cast<std::size_t>(staged + kMelFrames<kFft> * kMelFrameWords<kFft / 2>);
}

/// Sets x[i] to sample from + i of the row, with dither; 0 outside the utterance. `from` is a
/// multiple of 4.
template <int kThreads>
__device__ inline void stage_samples(const LogMelArguments& a, std::int64_t row, std::int64_t from,
                                     int count, double* x) {
  const std::int16_t* audio = a.audio + row * a.samples;
  const std::int64_t length = a.audio_lengths[row] < a.samples ? a.audio_lengths[row] : a.samples;
  if (a.dither == 0.0) {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
      const std::int64_t n = from + i;
      x[i] = n >= 0 && n < length ? static_cast<double>(audio[n]) * 0x1p-15 : 0.0;
    }
    return;
  }
  const auto id = static_cast<std::uint64_t>(a.sample_ids[row]);
  for (int i = 4 * static_cast<int>(threadIdx.x); i < count; i += 4 * kThreads) {
    const std::int64_t first = from + i;
    float noise[4] = {};
    if (first >= 0 && first < length) {
      const PhiloxBlock words = dither_words(a.key, first / 4, id);
#pragma unroll
      for (std::size_t k = 0; k < 4; k += 2) {
        const float u = static_cast<float>(words[k]) * 0x1p-32f + 0x1p-32f;
        const float radius = sqrtf(-2.0f * logf(u));
        const std::uint32_t angle = words[k + 1];
        noise[k] = radius * sine_of_turns(static_cast<float>(complement(angle)) * 0x1p-32f);
        noise[k + 1] =
            radius * sine_of_turns(static_cast<float>(complement(angle - 0x40000000u)) * 0x1p-32f);
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const std::int64_t n = first + k;
      if (i + k < count)
        x[i + k] = n >= 0 && n < length ? static_cast<double>(audio[n]) * 0x1p-15 +
                                              a.dither * static_cast<double>(noise[k])
                                        : 0.0;
    }
  }
}

/// One pass of the transform by the lanes of a warp, on blocks of kSize points split into quarters.
template <int kHalf, int kSize>
__device__ inline void quarters_pass(double* re, double* im, const double2* roots, int lane) {
  constexpr int kQuarter = kSize / 4, kStep = 2 * kHalf / kSize;
#pragma unroll
  for (int i = 0; i < kHalf / 4 / kWarp; ++i) {
    const int butterfly = lane + i * kWarp, j = butterfly % kQuarter;
    const int p0 = mel_slot(butterfly / kQuarter * kSize + j);
    const int p1 = mel_slot(butterfly / kQuarter * kSize + j + kQuarter);
    const int p2 = mel_slot(butterfly / kQuarter * kSize + j + 2 * kQuarter);
    const int p3 = mel_slot(butterfly / kQuarter * kSize + j + 3 * kQuarter);
    const double sum_re = re[p0] + re[p2], sum_im = im[p0] + im[p2];
    const double gap_re = re[p0] - re[p2], gap_im = im[p0] - im[p2];
    const double odd_re = re[p1] + re[p3], odd_im = im[p1] + im[p3];
    const double odd_gap_re = re[p1] - re[p3], odd_gap_im = im[p1] - im[p3];
    const double re1 = gap_re + odd_gap_im, im1 = gap_im - odd_gap_re;
    const double re2 = sum_re - odd_re, im2 = sum_im - odd_im;
    const double re3 = gap_re - odd_gap_im, im3 = gap_im + odd_gap_re;
    const double2 w1 = __ldg(roots + j * kStep), w2 = __ldg(roots + 2 * j * kStep),
                  w3 = __ldg(roots + 3 * j * kStep);
    re[p0] = sum_re + odd_re, im[p0] = sum_im + odd_im;
    re[p1] = fma(re1, w1.x, -(im1 * w1.y)), im[p1] = fma(re1, w1.y, im1 * w1.x);
    re[p2] = fma(re2, w2.x, -(im2 * w2.y)), im[p2] = fma(re2, w2.y, im2 * w2.x);
    re[p3] = fma(re3, w3.x, -(im3 * w3.y)), im[p3] = fma(re3, w3.y, im3 * w3.x);
  }
  __syncwarp();
}

/// The last pass if the number of points is not a power of 4.
template <int kHalf>
__device__ inline void pairs_pass(double* re, double* im, int lane) {
#pragma unroll
  for (int i = 0; i < kHalf / 2 / kWarp; ++i) {
    const int p = mel_slot(2 * (lane + i * kWarp)), q = p + 1;
    const double a = re[p], b = im[p], c = re[q], d = im[q];
    re[p] = a + c, im[p] = b + d, re[q] = a - c, im[q] = b - d;
  }
  __syncwarp();
}

template <int kHalf, int kSize = kHalf>
__device__ inline void transform(double* re, double* im, const double2* roots, int lane) {
  if constexpr (kSize >= 4) {
    quarters_pass<kHalf, kSize>(re, im, roots, lane);
    transform<kHalf, kSize / 4>(re, im, roots, lane);
  } else if constexpr (kSize == 2) {
    pairs_pass<kHalf>(re, im, lane);
  }
}

/// Writes 4 |X[k]|^2 into words[k], k = 0 ... kHalf, over re and im, from the transform of kHalf
/// points.
template <int kHalf>
__device__ inline void power(double* words, const double2* roots, int lane) {
  constexpr int kPairs = kHalf / 2 / kWarp;
  const double *re = words, *im = words + mel_slot(kHalf);
  double low[kPairs], high[kPairs], middle = 0;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int k = lane + i * kWarp;
    const int p = mel_slot(spectrum_position(k, kHalf));
    const int q = mel_slot(spectrum_position((kHalf - k) % kHalf, kHalf));
    const double even_re = re[p] + re[q], even_im = im[p] - im[q];
    const double odd_re = im[p] + im[q], odd_im = re[q] - re[p];
    const double2 w = __ldg(roots + k);
    const double turned_re = odd_re * w.x - odd_im * w.y, turned_im = odd_re * w.y + odd_im * w.x;
    const double a = even_re + turned_re, b = even_im + turned_im;
    const double c = even_re - turned_re, d = even_im - turned_im;
    low[i] = a * a + b * b, high[i] = c * c + d * d;
  }
  if (lane == 0) {
    const int p = mel_slot(spectrum_position(kHalf / 2, kHalf));
    middle = 4.0 * (re[p] * re[p] + im[p] * im[p]);
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int k = lane + i * kWarp;
    words[k] = low[i], words[kHalf - k] = high[i];
  }
  if (lane == 0) words[kHalf / 2] = middle;
  __syncwarp();
}

template <int kFft>
__global__ void __launch_bounds__(kMelThreads<kFft>) log_mel_kernel(LogMelArguments a) {
  follow_earlier();
  constexpr int kHalf = kFft / 2, kFrames = kMelFrames<kFft>, kThreads = kMelThreads<kFft>;
  const std::int64_t row = blockIdx.x / a.groups;
  const std::int64_t first = std::int64_t{blockIdx.x % a.groups} * kFrames;
  const std::int64_t here = a.frames - first < kFrames ? a.frames - first : kFrames;
  const std::int64_t valid = a.lengths[row] - first < here ? a.lengths[row] - first : here;
  float* out = a.out + (row * a.frames + first) * a.mels;
  if (valid <= 0) {
    for (std::int64_t i = threadIdx.x; i < here * a.mels; i += kThreads) out[i] = 0.0f;
    return;
  }
  const int staged = (kFrames - 1) * a.hop + a.window;
  double* const samples = dynamic_shared<double>();
  double* const frames = samples + staged;
  // Stages sample `begin` - 1 and the following ones from a multiple of 4 on (the shift also rounds
  // negative numbers down).
  const std::int64_t begin = first * a.hop - a.lead, from = ((begin - 1) >> 2) * 4;
  const int before = static_cast<int>(begin - from);
  stage_samples<kThreads>(a, row, from, staged + before, frames);
  __syncthreads();
  const std::int64_t length = a.audio_lengths[row] < a.samples ? a.audio_lengths[row] : a.samples;
  for (int i = static_cast<int>(threadIdx.x); i < staged; i += kThreads)
    samples[i] =
        begin + i < length ? fma(-a.preemphasis, frames[before + i - 1], frames[before + i]) : 0.0;
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (warp >= here) return;
  out += static_cast<std::int64_t>(warp) * a.mels;
  if (warp >= valid) {
    for (int m = lane; m < a.mels; m += kWarp) out[m] = 0.0f;
    return;
  }
  double* const re = frames + warp * kMelFrameWords<kHalf>;
  double* const im = re + mel_slot(kHalf);
  for (int i = lane; i < kHalf; i += kWarp) {
    double even = 0, odd = 0;
    if (2 * i < a.window) {  // the window is a multiple of 16
      const double* x = samples + warp * a.hop + 2 * i;
      even = x[0] * __ldg(a.tables + 2 * i), odd = x[1] * __ldg(a.tables + 2 * i + 1);
    }
    re[mel_slot(i)] = even, im[mel_slot(i)] = odd;
  }
  __syncwarp();
  const auto* roots = reinterpret_cast<const double2*>(a.tables + a.window);
  transform<kHalf>(re, im, roots, lane);
  power<kHalf>(re, roots, lane);
  for (int m = lane; m < a.mels; m += kWarp) {
    const double* band = a.tables + a.bands + 3 * m;
    const double* powers = re + static_cast<int>(__ldg(band));
    const double* weights = a.tables + a.weights + static_cast<int>(__ldg(band + 2));
    const int bins = static_cast<int>(__ldg(band + 1));
    double sum = 0;
    for (int k = 0; k < bins; ++k) sum += __ldg(weights + k) * powers[k];
    out[m] = (logf(static_cast<float>(sum * 0.25 + a.guard)) - a.mean) * a.part;
  }
}

namespace {

template <int kFft>
void launch_log_mel(const Stream& stream, LogMelArguments a, std::int64_t batch) {
  constexpr int kFrames = kMelFrames<kFft>;
  const std::int64_t staged = (kFrames - 1) * std::int64_t{a.hop} + a.window;
  const std::int64_t groups = blocks_for(a.frames, kFrames);
  CHOIR_CHECK(batch * groups <= kMostBlocks, "{} utterances of {} frames in one call", batch,
              a.frames);
  a.groups = static_cast<unsigned>(groups);
  launch(stream, "log_mel", log_mel_kernel<kFft>,
         {dim3(static_cast<unsigned>(batch * groups)), dim3(kMelThreads<kFft>),
          mel_shared_words<kFft>(staged) * sizeof(double)},
         a);
}

}  // namespace

void log_mel(const Stream& stream, const ops::LogMel& args) {
  if (args.out.dtype != DType::f32) refuse_element(args.out.dtype);
  const ops::MelOptions& o = args.options;
  const MelTableLayout at = mel_table_layout(o);
  const std::int64_t batch = args.out.shape[0];
  const LogMelArguments a{static_cast<const std::int16_t*>(args.audio.data),
                          args.audio_lengths,
                          args.lengths,
                          args.sample_ids,
                          static_cast<const double*>(args.tables.data),
                          args.out.as<float>(),
                          args.audio.shape.back(),
                          args.out.shape[1],
                          0,  // groups, set by launch_log_mel()
                          static_cast<int>(o.hop),
                          static_cast<int>(o.mels),
                          static_cast<int>(mel_lead(o)),
                          static_cast<int>(at.window),
                          static_cast<int>(at.bands),
                          static_cast<int>(at.weights),
                          o.preemphasis,
                          o.dither,
                          o.guard,
                          static_cast<float>(o.mean),
                          static_cast<float>(1 / o.deviation),
                          args.dither_key};
  switch (o.fft) {
    case 256:
      return launch_log_mel<256>(stream, a, batch);
    case 512:
      return launch_log_mel<512>(stream, a, batch);
    default:
      return launch_log_mel<1024>(stream, a, batch);
  }
}

}  // namespace choir::cuda
