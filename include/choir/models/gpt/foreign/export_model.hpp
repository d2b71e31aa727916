#pragma once
// A checkpoint becomes a model of another program, slab by slab: every rank reads rows of the
// checkpoint and writes them into the file that all write together.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/models/gpt/gpt_config.hpp"
#include "choir/store/open.hpp"

namespace choir {

struct ExportRequest {
  std::string format;        ///< hf | gguf | nanogpt | llmc | peft
  std::string out;           ///< a folder for hf, nanogpt and peft, else a file; not there yet
  bool merge = false;        ///< adapters are added to the weights that they are beside
  std::string type = "f32";  ///< f64 | f32 | f16 | bf16 | q8_0
  std::int64_t shard_bytes = 5'000'000'000;
  std::string name;              ///< of the model, in GGUF
  std::string tokenizer_folder;  ///< that of the run, which may be missing
  std::string vocabulary;        ///< TrainMeta::vocabulary
};

struct ExportReport {
  std::vector<std::string> files;
  std::int64_t bytes = 0;  ///< of all tensors
  /// Biases that the model does not have and the other program wants: zeros.
  std::int64_t zero_tensors = 0;
};

/// Collective; the same report on every rank. DeckError for what the format does not have,
/// StorageError for what the disk refuses and numbers that the type cannot hold.
ExportReport export_model(Communicator& world, const Checkpoint& checkpoint,
                          const GptConfig& config, const ExportRequest& request);

}  // namespace choir
