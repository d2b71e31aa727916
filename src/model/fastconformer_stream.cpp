// A FastConformer over a stream, chunk by chunk.
#include "choir/device/profile_range.hpp"
#include "choir/model/fastconformer.hpp"
#include "choir/model/speech_chunks.hpp"
#include "choir/ops/relative_attention.hpp"

namespace choir {

SpeechPast FastConformer::make_past(Pass& pass, BucketHooks& hooks) const {
  CHOIR_CHECK(pieces_.whole() && pieces() == 1, "a stream through a part of a model");
  const SpeechChunks chunks(config_);
  const std::int64_t left = chunks.past, chunk = chunks.frames;
  const Tensor table =
      pass.allocate({2 * (left + chunk) - 1, config_.n_embd}, "relative positions");
  ops::relative_positions(pass.stream(), position_tables_, table);
  SpeechPast past;
  for (const Block& block : blocks_) {
    hooks.acquire(block.bucket);
    past.blocks.push_back(block.module->make_past(pass, left, chunk, table));
    hooks.release(block.bucket);
  }
  begin(pass, past);
  return past;
}

void FastConformer::begin(Pass& pass, SpeechPast& past) const {
  for (std::size_t i = 0; i < blocks_.size(); ++i) blocks_[i].module->begin(pass, past.blocks[i]);
}

Tensor FastConformer::forward_chunk(Pass& pass, const ModelBatch& batch, const FrameRange& range,
                                    SpeechPast& past, BucketHooks& hooks) {
  CHOIR_CHECK(batch.samples == 1, "{} streams in one pass", batch.samples);
  pass.begin(Mode::generate, sequence_of(batch, {}), 0);
  pass.begin_piece(0);
  const Tensor made = input_layer(pass, batch, hooks);
  pass.begin(Mode::generate, {.batch = 1, .tokens = range.count}, 0);
  Tensor stream = made.view(made.slice(range.first, range.count));
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    hooks.acquire(blocks_[i].bucket);
    stream = blocks_[i].module->forward_chunk(pass, stream, past.blocks[i], hooks);
    hooks.release(blocks_[i].bucket);
  }
  return head(pass, stream, batch, hooks);
}

}  // namespace choir
