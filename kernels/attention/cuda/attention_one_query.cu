#include "kernels/attention/cuda/attention_one_query.cuh"

#include "kernels/attention/cuda/attention_launch.cuh"
#include "kernels/cuda/types.cuh"

namespace choir::cuda {
namespace {

template <class T, int kWidth>
void launch_one_query(const Stream& stream, const ops::AttentionProblem& p,
                      const AttentionArgs<T>& a, float* parts) {
  const auto count = static_cast<unsigned>(blocks_for(p.keys, kOneQueryPart));
  const auto heads = static_cast<unsigned>(p.heads), batch = static_cast<unsigned>(p.batch);
  launch_early(stream, "attention_one_query", attention_one_query_kernel<T, kWidth>,
               {dim3(count, heads, batch), kOneQueryThreads}, a, p.seen,
               count > 1 ? parts : nullptr);
  if (count > 1)
    launch_early(stream, "attention_join", attention_join_kernel<T, kWidth>,
                 {dim3(heads, batch), kWidth}, a, parts, static_cast<int>(count));
}

}  // namespace

bool attention_of_one_query(const Stream& stream, const ops::AttentionForward& args) {
  constexpr std::int64_t kMostBlocks = 65535;  // limit of a grid along y and z
  const ops::AttentionProblem& p = args.problem;
  if (!choir::attention_of_one_query(p) || p.heads > kMostBlocks || p.batch > kMostBlocks)
    return false;
  bool done = false;
  with_element(p.dtype, [&](auto t) {
    using T = decltype(t);
    const AttentionArgs<T> a = attention_args<T>(args);
    done = a.aligned;
    if (done)
      with_head_width<32, 64, 128>(p.head_width, [&](auto width) {
        launch_one_query<T, width()>(stream, p, a, static_cast<float*>(args.workspace.data));
      });
  });
  return done;
}

}  // namespace choir::cuda
