"""Make the models and data sets of commands.csv: ``python3 make_inputs.py [FOLDER]`` (default: outputs/wild/inputs).

Every folder has the name that a script asks for. Models have random weights; data come from fixed seeds, so two
machines make equal ones. The Planetoid graph is written beside the scripts, where the scripts look for it.
"""

from data import make_data
from models import make_models
from words import OUT

if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    make_data()  # before the models: equal on both machines whatever a model draws
    make_models()
