#pragma once
// Conversion of language models between choir and other programs (transformers, llama.cpp, nanoGPT,
// llm.c). Import makes a run; export writes a checkpoint slab by slab, so that every rank reads
// rows of the checkpoint and writes them into the file that all ranks write together.

#include <cstdint>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "src/models/gpt/gpt_config.hpp"
#include "src/run/imported_run.hpp"
#include "src/store/open.hpp"

namespace choir {

/// Collective; the same report on every rank. DeckError for unsupported models and for an `out`
/// that exists. StorageError for damaged files, and for tensors that are missing, unused or of
/// another shape, all of which the message lists.
ImportReport import_model(Communicator& world, const ImportRequest& request);

struct ExportRequest {
  std::string format;        ///< hf | gguf | nanogpt | llmc | peft
  std::string out;           ///< a folder for hf, nanogpt and peft, else a file; must not exist
  bool merge = false;        ///< add adapters to the weights that they belong to
  std::string type = "f32";  ///< f64 | f32 | f16 | bf16 | q8_0 | q4_k
  std::int64_t shard_bytes = 5'000'000'000;
  std::string name;              ///< of the model, in GGUF
  std::string tokenizer_folder;  ///< tokenizer folder of the run, which may be missing
  std::string vocabulary;        ///< TrainMeta::vocabulary
};

struct ExportReport {
  std::vector<std::string> files;
  std::int64_t bytes = 0;  ///< of all tensors
  /// Biases that the model does not have but the other program requires; they are zeros.
  std::int64_t zero_tensors = 0;
  std::string type;  ///< under which the matrices are stored: ExportRequest::type, q5_0 or f32
  /// Lines for people: what the export has instead of what was asked for, and what it leaves out.
  std::vector<std::string> notes;
};

/// Collective; the same report on every rank. DeckError for features that the format lacks,
/// StorageError for failures of the disk and for numbers that the type cannot represent.
ExportReport export_model(Communicator& world, const Checkpoint& checkpoint,
                          const GptConfig& config, const ExportRequest& request);

}  // namespace choir
