#pragma once
// A language model with audio input (SALM, Chen et al. 2023, arXiv 2310.09424): a FastConformer
// encodes clips of audio, a projector converts its frames to rows of the decoder's width, and these
// rows replace the placeholders of the clips in a conversation.
#include <cstdint>

#include "choir/core/enum_words.hpp"
#include "choir/models/batch.hpp"
#include "choir/models/model_config.hpp"
#include "src/models/fastconformer/fastconformer_config.hpp"
#include "src/models/gpt/gpt_config.hpp"

namespace choir {

/// The layers between encoder and projector, which are trained when both towers are frozen.
struct SalmAdapter {
  std::int64_t layers = 0;  ///< blocks like those of the encoder
  std::int64_t stack = 1;   ///< adjacent frames that the projector converts to one row
};

/// The division of the work before the junction among ranks of the tensor axis: each layer, or the
/// clips of a micro-batch, of which each rank encodes some with whole layers.
enum class EncoderShare : std::uint8_t { layers, clips };
constexpr auto words_of(EncoderShare) {
  return words<EncoderShare>({{EncoderShare::layers, "layers"}, {EncoderShare::clips, "clips"}});
}

struct SalmConfig {
  FastConformerConfig encoder;  ///< its vocabulary is unused: there is no CTC head
  SalmAdapter adapter;
  GptConfig lm;

  // ModelConfig reads these of the whole model.
  std::int64_t n_layer = 0;                 ///< all blocks and the junction; set by complete()
  std::int64_t n_embd = 0, vocab_size = 0;  ///< of the decoder
  Recompute recompute = Recompute::none;    ///< in the blocks of both towers
  EncoderShare encoder_share = EncoderShare::layers;
  bool shares_clips() const { return encoder_share == EncoderShare::clips; }

  /// Sets the members that follow from the parts.
  void complete() {
    n_layer = junction() + lm.n_layer;
    n_embd = lm.n_embd;
    vocab_size = lm.vocab_size;
  }
  /// The unit that projects frames, embeds tokens, and puts the frames between the tokens.
  int junction() const { return static_cast<int>(encoder.n_layer + adapter.layers) + 1; }
  /// Converts samples of a clip to rows: SpeechFrames::rows.
  SpeechFrames clip_rows() const {
    SpeechFrames frames = encoder.speech_frames();
    frames.stack = adapter.stack;
    return frames;
  }
};

const ModelFamily& family_of(const SalmConfig& config);

/// The fields of a micro-batch of conversations [B, T] with clips [N, S], without memory: the
/// inputs of the encoder (speech_fields) without labels, and
///   "index"        [B*T] i32: the id of a token, or -1-r for row r of the rows [N*T'] of all
///                  clips (SalmConfig::clip_rows), each at most once; padding 0
///   "targets"      [B*T] i32: the next token, or -1 where it is masked
///   "conversation_ids" [B] i64; random numbers of a row depend on it and on the seed
ModelBatch salm_fields(int stages, const BatchShape& shape);

}  // namespace choir
