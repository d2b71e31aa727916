#pragma once
// The functions of cuDNN's C backend interface that are used here, found at run time. Types and
// constants come from its headers.
#include <cudnn.h>

#include <string>

namespace choir::cudnn {

struct Api {
  decltype(&cudnnGetVersion) get_version = nullptr;
  decltype(&cudnnGetErrorString) get_error_string = nullptr;
  decltype(&cudnnGetLastErrorString) get_last_error_string = nullptr;
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnDestroy) destroy = nullptr;
  decltype(&cudnnSetStream) set_stream = nullptr;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor = nullptr;
  decltype(&cudnnBackendSetAttribute) set_attribute = nullptr;
  decltype(&cudnnBackendGetAttribute) get_attribute = nullptr;
  decltype(&cudnnBackendFinalize) finalize = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;
};

/// Loaded on the first call; throws DeckError with absent_because() when it is missing.
const Api& api();

/// Empty when cuDNN is there and new enough for the attention patterns; else why not.
const std::string& absent_because();

/// "cuDNN 9.19.0 (libcudnn.so.9)"; empty when absent.
std::string version_text();

}  // namespace choir::cudnn
