"""What people do today: load the base, let peft merge the adapter, compare with torch.equal, or save the result.

Usage: python peft_peer.py BASE ADAPTER SERVED        compare with the served shards
       python peft_peer.py BASE ADAPTER --save OUT    write the merged model
"""

import logging
import sys
import warnings
from pathlib import Path

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    base, adapter, *rest = sys.argv[1:]
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    merged = PeftModel.from_pretrained(model, adapter).merge_and_unload()
    if rest[0] == "--save":
        merged.save_pretrained(rest[1])
    else:
        state = merged.state_dict()
        for shard in sorted(Path(rest[0]).glob("*.safetensors")):
            for name, tensor in load_file(shard).items():
                if not torch.equal(tensor, state[name]):
                    raise SystemExit(f"{name} differs")
