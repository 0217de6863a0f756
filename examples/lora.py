"""LoRA fine-tune of a Hugging Face model on several machines. Only the adapter travels; each machine needs the model.

    python examples/lora.py MODEL TEXT --workers 2

MODEL is a folder or a name on the Hub. TEXT has one text a line (.txt), or one object with "text" (.jsonl). The first
machine prints the command for the others. The same command continues after any end. runs/lora/checkpoints has the
adapter.
"""

import argparse
import json

import atoll
import atoll.hf
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)


def main() -> None:
    parser = argparse.ArgumentParser(description="LoRA fine-tune on several machines")
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--run", default="runs/lora", help="folder of the run (first machine)")
    parser.add_argument("--out", default="adapter", help="folder for the trained adapter")
    parser.add_argument("--name", help="name of this worker; default: the host's")
    parser.add_argument("--workers", type=int, default=1, help="machines that the first round waits for")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=30, help="steps between two exchanges")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--listen", default="tcp://0.0.0.0:29600")
    options = parser.parse_args()
    target = atoll.launch(options.run, max_steps=options.steps, every=options.every, batch_size=options.batch,
                          workers=options.workers, listen=options.listen)

    tokenizer = AutoTokenizer.from_pretrained(options.model, trust_remote_code=False)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    with open(options.text, encoding="utf-8") as file:
        texts = [json.loads(line)["text"] if options.text.endswith(".jsonl") else line for line in file if line.strip()]
    samples = [{"input_ids": ids} for ids in tokenizer(texts, truncation=True, max_length=256)["input_ids"]]

    model = AutoModelForCausalLM.from_pretrained(options.model, trust_remote_code=False, use_safetensors=True)
    model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    model.print_trainable_parameters()
    trainer = Trainer(
        model=model,
        args=TrainingArguments(options.out, max_steps=options.steps, per_device_train_batch_size=options.batch,
                               learning_rate=1e-3, logging_steps=10, save_strategy="no", report_to="none"),
        train_dataset=samples,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        processing_class=tokenizer,
        callbacks=[atoll.hf.Callback(target, name=options.name)],
    )
    trainer.train()
    trainer.save_model(options.out)


if __name__ == "__main__":
    main()
