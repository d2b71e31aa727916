#include "kernels/log_mel/log_mel.cuh"

#include "kernels/cuda/types.cuh"

namespace choir::cuda {
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
