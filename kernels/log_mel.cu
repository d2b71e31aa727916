#include "kernels/log_mel.cuh"

#include "kernels/types.cuh"

namespace choir::cuda {
namespace {

template <int kFft>
void launch_log_mel(const Stream& stream, const LogMelArguments& a, std::int64_t batch) {
  const std::int64_t staged = (kMelFrames - 1) * std::int64_t{a.hop} + a.window;
  launch(stream, "log_mel", log_mel_kernel<kFft>,
         {dim3(static_cast<unsigned>(batch * a.groups)), dim3(kMelThreads),
          mel_shared_words<kFft>(staged) * sizeof(float)},
         a);
}

}  // namespace

void log_mel(const Stream& stream, const ops::LogMel& args) {
  if (args.out.dtype != DType::f32) refuse_element(args.out.dtype);
  const ops::MelOptions& o = args.options;
  const MelTableLayout at = mel_table_layout(o);
  const std::int64_t batch = args.out.shape[0], frames = args.out.shape[1];
  const std::int64_t groups = blocks_for(frames, kMelFrames);
  CHOIR_CHECK(batch * groups <= kMostBlocks, "{} utterances of {} frames in one call", batch,
              frames);
  const LogMelArguments a{static_cast<const std::int16_t*>(args.audio.data),
                          args.audio_lengths,
                          args.lengths,
                          args.sample_ids,
                          static_cast<const float*>(args.tables.data),
                          args.out.as<float>(),
                          args.audio.shape.back(),
                          frames,
                          static_cast<unsigned>(groups),
                          static_cast<int>(o.hop),
                          static_cast<int>(o.mels),
                          static_cast<int>(mel_lead(o)),
                          static_cast<int>(at.window),
                          static_cast<int>(at.bands),
                          static_cast<int>(at.weights),
                          static_cast<float>(o.preemphasis),
                          static_cast<float>(o.dither),
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
