"""llama.cpp: build it (`build.py`), make a model for it (`make_gguf.py`), read it (`read.py`)."""
