#pragma once
// A language model that hears (SALM, Chen et al. 2023, arXiv 2310.09424): a FastConformer encodes
// clips of audio, a projector turns its frames into rows of the width of a decoder, and they stand
// in a conversation where it has a placeholder for the clip.
#include <cstdint>

#include "choir/models/batch.hpp"
#include "choir/models/fastconformer/fastconformer_config.hpp"
#include "choir/models/gpt/gpt_config.hpp"
#include "choir/models/model_config.hpp"

namespace choir {

/// What stands between the encoder and the projector, to be trained where both towers are frozen.
struct SalmAdapter {
  std::int64_t layers = 0;  ///< blocks like those of the encoder
  std::int64_t stack = 1;   ///< frames side by side that the projector turns into one row
};

/// What ranks of the tensor axis share of the work before the junction: the layers of each block,
/// or the clips of a micro-batch, of which each encodes some with whole layers.
enum class EncoderShare : std::uint8_t { layers, clips };

struct SalmConfig {
  FastConformerConfig encoder;  ///< its vocabulary means nothing: there is no CTC head
  SalmAdapter adapter;
  GptConfig lm;

  // ModelConfig asks for these of the whole model.
  std::int64_t n_layer = 0;  ///< encoder's, adapter's, the junction, decoder's: complete() counts
  std::int64_t n_embd = 0, vocab_size = 0;  ///< of the decoder
  Recompute recompute = Recompute::none;    ///< in the blocks of both
  EncoderShare encoder_share = EncoderShare::layers;
  bool shares_clips() const { return encoder_share == EncoderShare::clips; }

  /// Sets what follows from the parts.
  void complete() {
    n_layer = junction() + lm.n_layer;
    n_embd = lm.n_embd;
    vocab_size = lm.vocab_size;
  }
  /// The unit that projects frames, embeds tokens, and puts the one among the other.
  int junction() const { return static_cast<int>(encoder.n_layer + adapter.layers) + 1; }
  /// How many rows a clip takes: SpeechFrames::rows.
  SpeechFrames clip_rows() const {
    SpeechFrames frames = encoder.speech_frames();
    frames.stack = adapter.stack;
    return frames;
  }
};

const ModelFamily& family_of(const SalmConfig& config);

/// The fields of a micro-batch of conversations [B, T] with clips [N, S]: what an encoder reads
/// (speech_fields), without labels, and
///   "index"        [B*T] i32: the id of a token, or -1-r for row r of the rows [N*T'] of all
///   clips (SalmConfig::clip_rows); each at most once; padding 0
///   "targets"      [B*T] i32: the next token where it counts, else -1
///   "conversation_ids" [B] i64, what random numbers of a row are functions of, beside the seed
/// Without memory.
ModelBatch salm_fields(int stages, const BatchShape& shape);

}  // namespace choir
