#pragma once
// Conversion of language models between choir and other programs (transformers, llama.cpp, nanoGPT,
// llm.c). Import makes a run; export writes a checkpoint slab by slab.

#include "choir/comm/communicator.hpp"
#include "src/models/gpt/gpt_config.hpp"
#include "src/run/exported_model.hpp"
#include "src/run/imported_run.hpp"
#include "src/store/open.hpp"

namespace choir {

/// Collective; the same report on every rank. DeckError for unsupported models and for an `out`
/// that exists. StorageError for damaged files, and for tensors that are missing, unused or of
/// another shape, all of which the message lists.
ImportReport import_model(Communicator& world, const ImportRequest& request);

/// Collective; the same report on every rank. DeckError for features that the format lacks,
/// StorageError for failures of the disk and for numbers that the type cannot represent.
ExportReport export_model(Communicator& world, const Checkpoint& checkpoint,
                          const GptConfig& config, const ExportRequest& request);

}  // namespace choir
