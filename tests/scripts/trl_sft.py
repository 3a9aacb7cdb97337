"""Supervised fine-tuning with TRL, after its own script sft.py: --packing, --use_peft and --deepspeed are options."""

from datasets import load_dataset
from trl import ModelConfig, ScriptArguments, SFTConfig, SFTTrainer, TrlParser, get_peft_config

if __name__ == "__main__":
    script, training, model = TrlParser((ScriptArguments, SFTConfig, ModelConfig)).parse_args_and_config()
    training.model_init_kwargs = {"dtype": model.dtype, "attn_implementation": model.attn_implementation}
    data = load_dataset(script.dataset_name)
    trainer = SFTTrainer(
        model=model.model_name_or_path,
        args=training,
        train_dataset=data[script.dataset_train_split],
        eval_dataset=data[script.dataset_test_split] if training.eval_strategy != "no" else None,
        peft_config=get_peft_config(model),
    )
    trainer.train()
    trainer.save_model(training.output_dir)
