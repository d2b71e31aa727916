#pragma once
// Import of language models of other programs as runs: transformers, llama.cpp, nanoGPT, llm.c.
#include "choir/train/step/imported_run.hpp"

namespace choir {

/// Collective; the same report on every rank. DeckError for unsupported models and for an `out`
/// that exists. StorageError for damaged files, and for tensors that are missing, unused or of
/// another shape, all of which the message lists.
ImportReport import_model(Communicator& world, const ImportRequest& request);

}  // namespace choir
